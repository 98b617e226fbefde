"""Variables and annotations that several dashboards have."""

from dashboards.model import Annotation, Variable
from dashboards.promql import MODEL

# Who is on the chosen hosts, and drafts in the chosen way; a list, so that others stay out.
MODEL_ON_HOST = Variable(
    "model", "Model", 'slipstream_server_info{host=~"$host", spec_type=~"$spec_type"}', has_open_all=False
)
HOST_OF_MODEL = Variable("host", "Host", "slipstream_server_info")
SPEC_TYPE = Variable("spec_type", "Speculation", 'slipstream_server_info{host=~"$host"}')
SLOT = Variable("slot", "Slot", f"slipstream_slot_predicted_tokens_total{{{MODEL}}}")
ANY_MODEL = Variable("model", "Model", "slipstream_server_up")


def _event(name: str, event: str, says: str, color: str) -> Annotation:
    # A mark stands where the value says, in milliseconds: annotations.ts of Grafana. It asks once a step, and the step
    # is the range by the window's width in pixels: of two events of one kind and model in one step there is the later
    # one alone, and those up to a step apart become one stretch.
    expr = f'slipstream_event_timestamp_seconds{{{MODEL}, event="{event}"}} * 1000'
    return Annotation(name, expr, f"{{{{model}}}} {says}", "model,event", color)


EVENTS = (
    _event("Loads", "loaded", "was loaded", "green"),
    _event("Ends", "ended", "was ended", "blue"),
    _event("Changes of flags", "flags", "has other flags", "purple"),
    _event("Failures", "failed", "failed", "red"),
)
ALERTS = Annotation(
    "Alerts",
    'max by (alertname, model, slot, host) (ALERTS{alertname=~"Slipstream.+", alertstate="firing"})',
    "{{alertname}} {{model}} {{host}}",
    "alertname,model,slot,host",
    "orange",
    is_time_in_value=False,
)
