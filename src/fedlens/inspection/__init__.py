"""What a modeler sees: samples with their guarantee, contrasts between them, and reports. All of it post-processing."""

from fedlens.inspection.contrast import contrast
from fedlens.inspection.opening import opened
from fedlens.inspection.report import Chart, Finding, Picture, Report
from fedlens.inspection.samples import Model, Samples
from fedlens.inspection.text_contrast import contrast_texts
from fedlens.inspection.texts import TextModel, Texts

__all__ = [
    "Chart",
    "Finding",
    "Model",
    "Picture",
    "Report",
    "Samples",
    "TextModel",
    "Texts",
    "contrast",
    "contrast_texts",
    "opened",
]
