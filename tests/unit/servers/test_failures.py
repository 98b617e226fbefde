"""Reasons, told from what the pinned llama-server and the runtimes below it print; by file where it stands."""

import signal

import pytest

from orchestrator.servers.failures import classify, on_processor

# What the pinned server printed here, word for word, folders left out.
BAD_MAGIC = """0.00.003.784 I srv    load_model: loading model 'bad.gguf'
0.00.003.908 E gguf_init_from_reader: invalid magic characters: '??B?', expected 'GGUF'
0.00.004.012 E llama_model_load: error loading model: llama_model_loader: failed to load model from bad.gguf
0.00.004.028 E llama_model_load_from_file_impl: failed to load model
0.00.004.095 E common_fit_params: encountered an error while trying to fit params to free device memory: failed to load
0.00.004.168 E srv    load_model: failed to load model, 'bad.gguf'
0.00.004.170 I srv    operator(): operator(): cleaning up before exit...
0.00.004.462 E srv  llama_server: exiting due to model loading error"""
TRUNCATED = """0.00.007.892 E llama_model_load: error loading model: tensor 'output.weight' data is not within \
the file bounds, model is corrupted or incomplete
0.00.007.915 E llama_model_load_from_file_impl: failed to load model
0.00.008.427 E srv  llama_server: exiting due to model loading error"""
NO_HEAD = """0.00.012.146 W llama_init_from_model: context type MTP requested but model doesn't contain MTP layers
0.00.012.162 E common_speculative_init_result: failed to create MTP context
0.00.012.650 E srv  llama_server: exiting due to model loading error"""
NO_MEMORY = """0.02.826.763 E ggml_aligned_malloc: insufficient memory (attempted to allocate 7815.33 MB)
0.02.826.782 E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 8194967584
0.02.826.784 E ggml_gallocr_reserve_n_impl: failed to allocate CPU buffer of size 8194967584
0.02.826.785 E graph_reserve: failed to allocate compute buffers
0.03.018.266 E llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers
0.03.018.308 E srv    load_model: failed to create_context with model 't.gguf'
0.03.018.871 E srv  llama_server: exiting due to model loading error"""
UNKNOWN = "error: invalid argument: --no-such-thing"
BAD_VALUE = """error while handling argument "--ctx-size": stoi

usage:
-c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)

to show complete usage, run with -h"""
NO_DEVICE = """error while handling argument "--device": invalid device: CUDA0

usage:
-dev,  --device <dev1,dev2,..>          comma-separated list of devices to use for offloading"""
PORT = """0.00.002.125 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 49813
0.00.002.205 E srv  llama_server: exiting due to HTTP server error"""

# One line of what cannot be provoked without the device, made from the format in the file.
SOURCE_LINES = [
    # src/llama-kv-cache.cpp, src/llama-memory-recurrent.cpp, src/llama-model.cpp, src/llama-context.cpp
    ("out_of_memory", "E llama_init_from_model: failed to initialize: failed to allocate buffer for kv cache"),
    ("out_of_memory", "E llama_init_from_model: failed to initialize: failed to allocate buffer for rs cache"),
    ("out_of_memory", "E llama_model_load: error loading model: unable to allocate CUDA0 buffer"),
    ("out_of_memory", "E output_reserve: failed to allocate output buffer of size 9999.99 MiB"),
    ("out_of_memory", "E process_ubatch: failed to allocate graph"),
    # ggml/src/ggml-cuda/ggml-cuda.cu
    ("out_of_memory", "E buft_alloc: allocating 28512.00 MiB on device 0: cudaMalloc failed: out of memory"),
    ("out_of_memory", "E CUDA error: out of memory"),
    ("out_of_memory", "E ROCm error: hipErrorOutOfMemory"),
    # ggml/src/ggml-alloc.c, ggml/src/ggml.c
    ("out_of_memory", "E ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 1073741824"),
    ("out_of_memory", "GGML status: error (failed to allocate memory)"),
    # ggml/src/ggml-vulkan
    ("out_of_memory", "E ggml_vulkan: allocation failed: vk::Device::allocateMemory: ErrorOutOfDeviceMemory"),
    # the C++ library
    ("out_of_memory", "  what():  std::bad_alloc"),
    ("out_of_memory", "  what():  cannot create std::vector larger than max_size()"),
    # src/llama-mmap.cpp
    ("out_of_memory", "E llama_model_load: error loading model: mmap failed: Cannot allocate memory"),
    # cudaGetErrorString, hipGetErrorString by ggml_cuda_error
    ("no_kernel_image", "E CUDA error: no kernel image is available for execution on the device"),
    ("no_kernel_image", "E CUDA error: device kernel image is invalid"),
    ("no_kernel_image", "E ROCm error: invalid device function"),
    # ggml/src/ggml-cuda/common.cuh no_device_code
    ("no_kernel_image", "mmq.cuh:1: ERROR: HIP kernel mul_mat_q has no device code compatible with HIP arch 906."),
    # rocBLAS
    ("no_tensile_files", "rocBLAS error: Cannot read TensileLibrary.dat: Illegal seek for GPU arch : gfx906"),
    ("no_tensile_files", "rocBLAS error: Could not load TensileLibrary_lazy_gfx906.dat"),
    ("no_accelerator", "rocBLAS error: Could not initialize Tensile host: No devices found"),
    # ggml/src/ggml-cuda/ggml-cuda.cu ggml_cuda_init, src/llama.cpp
    ("no_accelerator", "E ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected"),
    ("no_accelerator", "E llama_prepare_model_devices: LLAMA_SPLIT_MODE_TENSOR needs >= 1 devices"),
    # common/arg.cpp
    ("unknown_argument", 'error while handling environment variable "LLAMA_ARG_CTX_SIZE": stoi'),
    ("unknown_argument", "error: unknown value for --flash-attn: 'maybe'"),
    # src/llama-model-loader.cpp, src/llama-model.cpp, ggml/src/gguf.cpp, tools/server/server-context.cpp
    ("bad_file", "E llama_model_load: error loading model: missing tensor 'blk.0.attn_q.weight'"),
    ("bad_file", "E llama_model_load: error loading model: wrong number of tensors; expected 2, got 1"),
    ("bad_file", "E llama_model_load: error loading model: unknown model architecture: 'x'"),
    ("bad_file", "E gguf_reader: encountered bad_alloc error while reading key 3"),
    ("bad_file", "E srv    load_model: failed to load draft model, 'd.gguf'"),
    ("port", "E srv         start: couldn't start HTTP listener on http://127.0.0.1:1"),
]  # fmt: skip
# Lines of servers that go on all the same; what ended the server is something else.
HARMLESS = [
    "W llama_mlock: warning: failed to mlock 1048576-byte buffer: Cannot allocate memory",
    "D ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: out of memory",
    "E srv          save: failed to allocate memory for prompt cache state: std::bad_alloc",
    "W operator(): failed to measure the memory of the extra model, fitting without it: x",
    "warning: no usable GPU found, --gpu-layers option will be ignored",
    "I slot      release: id  3 | task 0 | stop processing: n_tokens = 30, truncated = 0",
]  # fmt: skip


@pytest.mark.parametrize(
    "printed, reason, said",
    [
        (BAD_MAGIC, "bad_file", "invalid magic characters"),
        (TRUNCATED, "bad_file", "not within the file bounds"),
        (NO_HEAD, "bad_file", "doesn't contain MTP layers"),
        (NO_MEMORY, "out_of_memory", "attempted to allocate 7815.33 MB"),
        (UNKNOWN, "unknown_argument", "--no-such-thing"),
        (BAD_VALUE, "unknown_argument", '"--ctx-size": stoi'),
        (NO_DEVICE, "no_accelerator", "invalid device: CUDA0"),
        (PORT, "port", "port: 49813"),
    ],
)
def test_what_the_pinned_server_printed(printed: str, reason: str, said: str) -> None:
    failure = classify(1, printed.splitlines())
    assert (failure.reason, failure.exit_code) == (reason, 1)
    assert failure.message.startswith("llama-server ended with status 1: ") and said in failure.message
    assert failure.log_tail == tuple(printed.splitlines())


@pytest.mark.parametrize("reason, line", SOURCE_LINES, ids=lambda text: text[-40:])
@pytest.mark.parametrize("exit_code", [1, -signal.SIGABRT])
def test_lines_of_the_source(reason: str, line: str, exit_code: int) -> None:
    failure = classify(exit_code, ["I srv    load_model: loading model 'm.gguf'", line])
    assert failure.reason == reason and line in failure.message


@pytest.mark.parametrize("line", HARMLESS, ids=lambda text: text[:30])
def test_lines_that_ended_nothing(line: str) -> None:
    assert classify(1, [line]).reason == "exited"
    assert classify(-signal.SIGSEGV, [line]).reason == "killed"


def test_the_first_of_several_reasons_is_the_cause() -> None:
    lines = [*NO_MEMORY.splitlines(), "E llama_model_load: error loading model: x"]
    assert classify(1, lines).reason == "out_of_memory"


def test_a_backtrace_hides_neither_the_reason_nor_the_last_words() -> None:
    words = ["ggml.c:1644: GGML_ASSERT(ctx->mem_buffer != NULL) failed", NO_MEMORY.splitlines()[0]]
    trace = [
        "gdb: warning: Couldn't determine a path for the index cache directory.",
        *(f"[New LWP {number}]" for number in range(70)),
        "[Thread debugging using libthread_db enabled]",
        'Using host libthread_db library "libthread_db.so.1".',
        "0x00007fdde4cf1c17 in __GI___wait4 (pid=18131) at wait4.c:30",
        "30\t../sysdeps/unix/sysv/linux/wait4.c: No such file or directory.",
        *(f"#{number} 0x00007f35e5050b85 in common_fit_params () from libllama-common.so.0" for number in range(20)),
        "libggml-base.so.0(+0x1c79b)[0x7b1356b1779b]",
        "libggml-base.so.0(ggml_abort+0x152)[0x7b1356b17df2]",
        "[Inferior 1 (process 18118) detached]",
    ]
    failure = classify(-signal.SIGABRT, [*words, *trace])
    assert failure.reason == "out_of_memory" and failure.message.startswith("llama-server was killed by SIGABRT: ")
    assert failure.log_tail == tuple(words)


@pytest.mark.parametrize(
    "exit_code, oom, ours, reason, message",
    [
        (-9, False, False, "killed", "llama-server was killed by SIGKILL"),
        (-9, False, True, "killed", "llama-server was killed by SIGKILL, which Slipstream sent"),
        (-9, True, False, "out_of_memory", "llama-server was killed by the kernel for lack of memory"),
        (-15, False, False, "killed", "llama-server was killed by SIGTERM"),
        (-40, False, False, "killed", "llama-server was killed by signal 40"),
        (137, False, False, "killed", "llama-server was killed by SIGKILL"),
        (139, False, False, "killed", "llama-server was killed by SIGSEGV"),
        (0, False, False, "exited", "llama-server ended with status 0"),
        (None, False, False, "exited", "llama-server ended"),
    ],
)
def test_ends_by_signals_and_without_words(
    exit_code: int | None, oom: bool, ours: bool, reason: str, message: str
) -> None:
    failure = classify(exit_code, [], oom=oom, ours=ours)
    assert (failure.reason, failure.message) == (reason, message)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_was_ended_from_outside_did_not_fail_by_what_it_logged_before(number: int) -> None:
    assert classify(-number, NO_MEMORY.splitlines()).reason == "killed"


def test_the_tail_is_short_however_much_was_looked_at() -> None:
    failure = classify(1, [UNKNOWN, *(f"line {number}" for number in range(299))])
    assert failure.reason == "unknown_argument" and len(failure.log_tail) == 20


def test_a_server_without_a_gpu_says_so() -> None:
    warning = "warning: no usable GPU found, --gpu-layers option will be ignored"
    failed = "E ggml_cuda_init: failed to initialize ROCm: no ROCm-capable device is detected"
    assert on_processor(["I srv init", warning]) == warning
    assert on_processor([failed]) == failed
    assert on_processor(BAD_MAGIC.splitlines()) is None
