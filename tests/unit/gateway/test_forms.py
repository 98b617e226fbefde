import pytest

from orchestrator.errors import SlipstreamError
from orchestrator.gateway.forms import model_of

KIND = "multipart/form-data; boundary=xyz"


def part(head: str, body: bytes) -> bytes:
    return b"--xyz\r\n" + head.encode() + b"\r\n\r\n" + body + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--xyz--\r\n"


MODEL = part('Content-Disposition: form-data; name="model"', b"whisper")
FILE = part(
    'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav',
    b'RIFF\r\n\r\n--xy\r\nContent-Disposition: form-data; name="model"\r\n\r\nnot me\r\n',
)


@pytest.mark.parametrize(
    "raw",
    [
        form(MODEL, FILE),
        form(FILE, MODEL),
        form(FILE, MODEL, MODEL),
        b"a preamble\r\n" + form(MODEL),
        form(part("content-disposition:form-data;name=model", b"whisper")),
        form(part('Content-Type: text/plain\r\nContent-Disposition: form-data; name="model"', b"whisper")),
    ],
)
def test_the_model_is_found(raw: bytes) -> None:
    assert model_of(raw, KIND) == "whisper"
    assert model_of(raw, 'Multipart/Form-Data; charset=utf-8; boundary="xyz"') == "whisper"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        form(),
        form(FILE),
        MODEL[:-20],
        MODEL,
        form(part('Content-Disposition: form-data; name="x"; filename="model"', b"w")),
        form(part('Content-Disposition: form-data; name="models"', b"w")),
        form(part('Content-Disposition: form-data; filename=" name=model"', b"w")),
        b"--xyz--\r\n" + MODEL + b"--xyz--",
    ],
)
def test_a_form_may_have_none(raw: bytes) -> None:
    assert model_of(raw, KIND) is None


def test_two_different_ones_are_refused() -> None:
    other = part('Content-Disposition: form-data; name="model"', b"other")
    with pytest.raises(SlipstreamError, match="2 different fields `model`"):
        model_of(form(MODEL, other), KIND)


@pytest.mark.parametrize("kind", ["", "application/json", "multipart/form-data", "multipart/form-data; boundary="])
def test_what_is_no_form_is_refused(kind: str) -> None:
    with pytest.raises(SlipstreamError, match="expected multipart/form-data with a boundary"):
        model_of(form(MODEL), kind)
