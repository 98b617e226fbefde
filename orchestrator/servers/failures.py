"""Why a llama-server ended, told from its exit status and its last lines."""

import re
import signal
from collections.abc import Iterable, Sequence

from orchestrator.schemas import Failure

# Lines worth looking at: what follows a failed assertion is a backtrace of some dozens.
LINES_TO_CLASSIFY = 300
# How many of them a client may see.
TAIL_LINES = 20
_SHELL_SIGNALS = range(129, 129 + 64)
# Who gets one of these was ended by somebody, whatever it logged before.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

# First match wins: an allocation that failed also says that the model could not be loaded. The texts are those of the
# pinned llama.cpp, by file; of rocBLAS and of the CUDA and HIP runtimes where they speak themselves.
# tests/unit/servers/test_failures.py has the lines they come from.
_REASONS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (reason, re.compile(pattern, re.I))
    for reason, pattern in (
        # common/arg.cpp parse_device_list; src/llama.cpp; rocBLAS where there is no GPU at all
        (
            "no_accelerator",
            r"invalid device: |SPLIT_MODE_TENSOR needs >= 1 devices|"
            r"Could not initialize Tensile host: No devices found",
        ),
        ("no_tensile_files", r"TensileLibrary|rocBLAS error: (Cannot read|Could not (load|initialize))"),
        # cudaGetErrorString, hipGetErrorString; ggml/src/ggml-cuda/common.cuh no_device_code
        (
            "no_kernel_image",
            r"no kernel image is available|invalid device function|device kernel image is invalid|"
            r"hipErrorNoBinaryForGpu|has no device code compatible with",
        ),
        # ggml/src/{ggml.c,ggml-alloc.c,ggml-backend.cpp}, ggml-cuda/ggml-cuda.cu, ggml-vulkan; src/llama-{kv-cache,
        # memory-recurrent,model,context,mmap}.cpp. What it goes on without (pinned and locked memory, the prompt
        # cache) is left out.
        (
            "out_of_memory",
            r"insufficient memory \(attempted|(?<!pinned memory: )out of memory|unable to allocate \S+ buffer|"
            r"cudaMalloc failed|failed to allocate ((\S+ )?buffer|compute (pp |tg )?buffers|graph$|output buffer|"
            r"memory\)|\d+ bytes| *[\d.]+ MB$)|(?<!cache state: )std::bad_alloc|vector larger than max_size|"
            r"_M_default_append|ErrorOutOf(Device|Host)?Memory|mmap failed: cannot allocate memory",
        ),
        # common/arg.cpp
        ("unknown_argument", r"^error: (invalid argument|unknown value)|error while handling (argument|environment)"),
        # tools/server/server-http.cpp
        ("port", r"couldn't bind HTTP server socket|couldn't start HTTP listener|address already in use"),
        # ggml/src/gguf.cpp; src/{llama,llama-model-loader,llama-model,llama-mmap}.cpp; tools/server/server-context.cpp
        (
            "bad_file",
            r"gguf_init|encountered (bad_alloc|length_error) |error loading model|failed to load( draft)? model|"
            r"not within the file bounds|corrupted|missing tensor|has wrong shape|wrong number of tensors|"
            r"unknown model architecture|doesn't contain MTP layers|failed to load multimodal model",
        ),
        # ggml/src/ggml-cuda/ggml-cuda.cu ggml_cuda_init, which goes on with the processor alone
        ("no_accelerator", r"failed to initialize (CUDA|ROCm|MUSA): "),
    )
)
_COMPLAINT = re.compile(r"^error|\sE\s|error:|failed|GGML_ASSERT|terminate called|what\(\):")
# ggml_print_backtrace: by gdb, by lldb, or by backtrace_symbols.
_BACKTRACE = re.compile(
    r"^(#\d+ |\[New LWP|\[Thread debugging|\[Inferior|Using host libthread|gdb: warning|warning: \d+\s+\.\./|"
    r"\d+\s+(\.\./|in )|0x[0-9a-f]{8,} in |\S*\.so[.\d]*\(.*\)\s?\[0x|\S+\(\+0x[0-9a-f]+\)\s?\[0x)"
)
# common/arg.cpp says the first when --gpu-layers is given and no backend has a GPU; the second is of ggml_cuda_init.
_ON_PROCESSOR = re.compile(r"no usable GPU found, --gpu-layers|failed to initialize (CUDA|ROCm|MUSA): ")


def classify(exit_code: int | None, lines: Sequence[str], *, oom: bool = False, ours: bool = False) -> Failure:
    """A failure with its reason, a sentence and the last lines.

    `exit_code` is negative for a signal, or 128 more than it, as engines of containers say it. `lines` are the last
    LINES_TO_CLASSIFY. `oom`: the kernel is known to have killed it for lack of memory; `ours`: we killed it.
    """
    kept = [line for line in lines if not _BACKTRACE.search(line)]
    number = 0 if exit_code is None else max(0, -exit_code_of(exit_code))
    reason, end = "killed" if number else "exited", _ending(exit_code, number, ours=ours)
    said = next((line for line in reversed(kept) if _COMPLAINT.search(line)), "")
    if oom:
        reason, end, said = "out_of_memory", "llama-server was killed by the kernel for lack of memory", ""
    elif number in _FROM_OUTSIDE:
        said = ""
    else:
        said = said or (kept[-1] if kept else "")
        reason, said = _told(kept) or (reason, said)
    return Failure(
        reason=reason,
        message=f"{end}: {said}" if said else end,
        exit_code=exit_code,
        log_tail=tuple(kept[-TAIL_LINES:]),
    )


def on_processor(lines: Iterable[str]) -> str | None:
    """The line by which a llama-server says that it found no accelerator and goes on without; None when it did not."""
    return next((line for line in lines if _ON_PROCESSOR.search(line)), None)


def _told(lines: Sequence[str]) -> tuple[str, str] | None:
    """Reason and the line that tells it."""
    for reason, pattern in _REASONS:
        for line in lines:
            if pattern.search(line):
                return reason, line
    return None


def exit_code_of(status: int) -> int:
    """An exit status as Python tells it: negative for a signal, which an engine or a shell adds to 128."""
    return 128 - status if status in _SHELL_SIGNALS else status


def _ending(exit_code: int | None, number: int, *, ours: bool) -> str:
    if not number:
        return "llama-server ended" if exit_code is None else f"llama-server ended with status {exit_code}"
    return f"llama-server was killed by {_name(number)}" + (", which Slipstream sent" if ours else "")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
