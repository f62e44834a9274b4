"""A model that follows a script, for agents: what a small model would not do by itself, kvant is made to do.

Stands between an agent and a server. The first request that offers a tool for commands is changed so that the tool must be called
with one harmless command, all others so that they are answered with one word; kvant's grammars see to both. Whatever passes is the
server's own answer. Prints its address, and then a line of JSON for every request: its path, whether a call was forced, and the
results of tools that came with it.
"""

import http.client
import http.server
import json
import sys
from urllib.parse import urlsplit

SAYS = "hello from the script"
COMMAND = f"echo {SAYS}"
# Tools for commands by the names that agents give them, and the fields that one call needs.
TOOLS = {
    "exec_command": {"cmd": COMMAND},
    "shell": {"command": ["echo", SAYS]},
    "shell_command": {"command": COMMAND},
    "bash": {"command": COMMAND, "description": "Says hello"},
    "Bash": {"command": COMMAND, "description": "Says hello"},
}


def schema(fields):
    constants = {name: {"const": value} for name, value in fields.items()}
    return {"type": "object", "properties": constants, "required": list(fields), "additionalProperties": False}


def results(body):
    """Texts of results that tools have given, in any of the protocols."""
    found = []
    for item in body.get("input") if isinstance(body.get("input"), list) else []:
        if item.get("type") == "function_call_output":
            found.append(json.dumps(item["output"]))
    for message in body.get("messages", []):
        if message.get("role") == "tool":
            found.append(json.dumps(message["content"]))
        for part in message["content"] if isinstance(message.get("content"), list) else []:
            if part.get("type") == "tool_result":
                found.append(json.dumps(part.get("content")))
    return found


def force(path, body):
    """Makes the model call a tool for commands, if it is offered one."""
    for tool in body.get("tools") or []:
        function = tool.get("function", tool)
        fields = TOOLS.get(function.get("name"))
        if fields is None or tool.get("type", "function") not in ("function", "custom"):
            continue
        name = function["name"]
        if path.endswith("/messages"):
            function["input_schema"] = schema(fields)
            body["tool_choice"] = {"type": "tool", "name": name}
        else:
            function["parameters"] = schema(fields)
            named = {"type": "function", "function": {"name": name}}
            body["tool_choice"] = named if path.endswith("/chat/completions") else {"type": "function", "name": name}
        # Reasoning comes before a call, and this model's has no end.
        body.pop("reasoning", None)
        body.pop("thinking", None)
        body["tools"] = [tool]
        return True
    return False


def finish(path, body):
    """Makes the model say one word, and end."""
    said = {"type": "json_schema", "name": "word", "schema": {"const": "Done."}}
    if path.endswith("/responses"):
        body["text"] = {"format": said}
    elif path.endswith("/chat/completions"):
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "word", "schema": said["schema"]}}
    else:
        body["output_format"] = {"type": "json_schema", "schema": said["schema"]}
    if body.get("tools"):
        body["tool_choice"] = {"type": "none"} if path.endswith("/messages") else "none"


class Script(http.server.BaseHTTPRequestHandler):
    upstream = urlsplit(sys.argv[1])
    is_done = False

    def do_GET(self):
        self.forward(b"")

    def do_POST(self):
        sent = self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.loads(sent) if sent else {}
        path = urlsplit(self.path).path
        found, forced = results(body), False
        if not found and not Script.is_done:
            forced = Script.is_done = force(path, body)
        if not forced and path.endswith(("/responses", "/completions", "/messages")):
            finish(path, body)
        print(json.dumps({"path": path, "forced": forced, "results": found}), flush=True)
        self.forward(json.dumps(body).encode() if sent else b"")

    def forward(self, body):
        connection = http.client.HTTPConnection(self.upstream.hostname, self.upstream.port)
        drop = ("host", "content-length", "connection", "accept-encoding", "transfer-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in drop}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        while piece := answer.read1(65536):
            self.wfile.write(piece)
            self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Script)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
