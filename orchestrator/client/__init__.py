"""The typed HTTP client of the API, for the command line and for other programs.

```
with Client() as client:
    client.start("smollm2-135m")
    for part in client.chat("smollm2-135m", [{"role": "user", "content": "Hello"}]):
        print(part)
```
"""

from orchestrator.client.chat import ChatAnswer, ChatEnd, Delta
from orchestrator.client.client import Client
from orchestrator.client.connection import DEFAULT_URL

__all__ = ["DEFAULT_URL", "ChatAnswer", "ChatEnd", "Client", "Delta"]
