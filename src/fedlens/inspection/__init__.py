"""What a modeler sees: samples with their guarantee, contrasts between them, and reports. All of it post-processing."""

from fedlens.inspection.contrast import contrast
from fedlens.inspection.opening import Trained, opened
from fedlens.inspection.report import Chart, Finding, Picture, Report
from fedlens.inspection.samples import Model, Samples
from fedlens.inspection.text_contrast import contrast_texts
from fedlens.inspection.texts import NgramModel, TextModel, Texts

__all__ = [
    "Chart",
    "Finding",
    "Model",
    "NgramModel",
    "Picture",
    "Report",
    "Samples",
    "TextModel",
    "Texts",
    "Trained",
    "contrast",
    "contrast_texts",
    "opened",
]
