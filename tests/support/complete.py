"""Ask the node of this host for a completion, and print each token as it arrives.

Runs on a host of a test: `python complete.py HOME '{"prompt": [1, 2, 3], …}'`. Each line is JSON:
the token ids of one event, or the error that ended the answer.
"""

import http.client
import json
import sys
from pathlib import Path


def main() -> None:
    node = json.loads((Path(sys.argv[1]) / "state" / "node.json").read_text(encoding="utf-8"))
    request = json.loads(sys.argv[2]) | {"stream": True, "return_token_ids": True}
    connection = http.client.HTTPConnection("127.0.0.1", node["port"], timeout=60)
    headers = {"Authorization": f"Bearer {node['token']}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(request), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        print(json.dumps({"error": json.loads(answer.read())["error"]["message"]}), flush=True)
        return
    for line in answer:
        data = line.decode().removeprefix("data:").strip()
        if not line.startswith(b"data:") or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            print(json.dumps({"error": event["error"]["message"]}), flush=True)
        elif event["choices"]:
            ids = event["choices"][0].get("token_ids") or []
            print(json.dumps({"token_ids": ids}), flush=True)


if __name__ == "__main__":
    main()
