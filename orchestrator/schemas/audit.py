"""Who changed what over the API."""

from pydantic import Field

from orchestrator.schemas.base import View


class AuditEntry(View):
    """One call that could change something, or calls that were refused. Never a body, a query or a key."""

    number: int = Field(description="Counts up from 1.", examples=[42])
    at: float = Field(description="When it came, before anything was done, Unix seconds.", examples=[1790000000.25])
    method: str = Field(description="Of refused calls, that of the first.", examples=["POST"])
    path: str = Field(
        description="Without the query, 200 characters at most; of refused calls, that of the first.",
        examples=["/api/servers/smollm2-135m/stop"],
    )
    key: str = Field(
        description="The first 8 hex digits of the key's sha256; `none` where no keys are set or none was sent, "
        "`unknown` for one that is not known.",
        examples=["3f79bb7b"],
    )
    client: str = Field(description="Address it came from.", examples=["127.0.0.1"])
    dry_run: bool = Field(False, description="Whether it only asked what would happen.", examples=[False])
    status: int | None = Field(
        None, description="HTTP status it was answered with; null: not answered yet, or never.", examples=[200]
    )
    milliseconds: float | None = Field(None, description="From the call to the answer.", examples=[812.4])
    count: int = Field(
        1, description="Calls it stands for: refused ones of one minute, address and key share one.", examples=[1]
    )


class AuditList(View):
    """The audit log, the newest first."""

    entries: tuple[AuditEntry, ...] = Field(description="Entries; `before` the last number brings those before.")
