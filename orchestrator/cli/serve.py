"""`slipstream serve`."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import Json


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 if unset.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 8080 if unset, 0 for any free one.")
    ] = None,
    models_dir: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Folder of the model files; ./models if unset.")
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(file_okay=False, help="Folder of the database.")] = None,
    llama_server: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="The llama-server binary; what `make server` built if unset."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the orchestrator here, until Ctrl-C. SLIPSTREAM_* in the environment set what no option sets."""
    given = {
        "HOST": host,
        "PORT": port,
        "MODELS_DIR": models_dir and models_dir.absolute(),
        "STATE_DIR": state_dir and state_dir.absolute(),
        "LLAMA_SERVER": llama_server and llama_server.absolute(),
    }
    os.environ.update({f"SLIPSTREAM_{name}": str(value) for name, value in given.items() if value is not None})
    if as_json:
        typer.echo(json.dumps({"pid": os.getpid()}))
        sys.stdout.flush()
    # The process becomes the orchestrator, so that signals, the process id and the parent-death signal stay right.
    # -P: no module of the current folder may take the place of one of ours.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "orchestrator.app"])
