"""What a modeler sees: samples with their guarantee, contrasts between them, and reports. All of it post-processing."""

from fedlens.inspection.contrast import contrast
from fedlens.inspection.report import Chart, Finding, Picture, Report
from fedlens.inspection.samples import Model, Samples

__all__ = ["Chart", "Finding", "Model", "Picture", "Report", "Samples", "contrast"]
