"""A `kvant serve` for the time of a measurement: on the device that DEVICE in the environment names (cuda), with what it says in the file SERVER_LOG."""
import json, os, subprocess, time, urllib.request


class Server:
    def __init__(self, kvant, model, *options):
        self.url = f"http://127.0.0.1:{18000 + os.getpid() % 1000}"
        log = open(os.environ.get("SERVER_LOG", os.devnull), "w")
        command = [kvant, "serve", "-m", model, "--device", os.environ.get("DEVICE", "cuda"), "--port", self.url.split(":")[-1], "--max-body", "64M", *options]
        self.process = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL)

    def __enter__(self):
        try:
            for _ in range(1200):
                try:
                    urllib.request.urlopen(f"{self.url}/health", timeout=1)
                    return self
                except OSError:
                    if self.process.poll() is not None:
                        break
                    time.sleep(0.1)
            raise SystemExit("the server does not answer; SERVER_LOG=FILE keeps what it says")
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def ask(self, prompt, tokens, **options):
        """Reads an answer to these ids: when the request was sent, and when each event came."""
        body = json.dumps(dict(prompt=prompt, max_tokens=tokens, stream=True, **options)).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
        sent = time.perf_counter()
        with urllib.request.urlopen(request, timeout=600) as answer:
            return sent, [time.perf_counter() for line in answer if line.startswith(b"data: {")]
