"""Model files: `models/*.yaml` to `ModelSpec` and back."""

from orchestrator.catalog.load import Catalog, load_catalog, read_as
from orchestrator.catalog.write import delete_model, write_model

__all__ = ["Catalog", "delete_model", "load_catalog", "read_as", "write_model"]
