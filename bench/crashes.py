"""Kills kvant at random moments and looks at what is left: python bench/crashes.py KVANT MODEL KILLS [SEED [PARTS]]. A quarter of KILLS each: `kvant run --session`
while it reads, answers and saves, `kvant serve --kv-dir` while it answers, `kvant convert`, and `kvant pull` from a hub of our own. What was saved before must be
sound and complete afterwards, what appears must be sound, answers must be those of a server that nobody killed, and the next run must succeed. One line
of JSON is printed for each; a loss ends the program."""
import hashlib, http.server, json, os, pathlib, random, shutil, subprocess, sys, tempfile, threading, time, urllib.error, urllib.request

kvant, model, kills = sys.argv[1], sys.argv[2], int(sys.argv[3]) // 4
draw = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
folder = pathlib.Path(tempfile.mkdtemp(prefix="kvant-crashes-"))
environment = dict(os.environ, KVANT_DEVICE="cpu", KVANT_CACHE=str(folder / "cache"))
PROMPT = "The history of the lighthouse, told slowly. " * 6


def command(*words):
    return [kvant, *map(str, words)]


def run(*words):
    return subprocess.run(command(*words), env=environment, capture_output=True, stdin=subprocess.DEVNULL, text=True)


def well(*words):
    done = run(*words)
    lost(done.returncode == 0, f"{words}: {done.stderr[-500:]}")
    return done.stdout


def lost(held, what):
    if not held:
        raise SystemExit(f"lost: {what}\nthe files are in {folder}")


def killed(within, *words):
    """Kills a command after a random part of `within` seconds; whether it was still running."""
    process = subprocess.Popen(command(*words), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(draw.random() * within)
    early = process.poll() is None
    process.kill()
    process.wait()
    return early


def seconds(*words):
    began = time.perf_counter()
    well(*words)
    return time.perf_counter() - began


def report(what, running, **more):
    print(json.dumps(dict(what=what, kills=kills, while_running=running, **more)), flush=True)


def sessions():
    """A conversation that was saved is there and sound after every kill, and can be resumed."""
    file = folder / "talk"
    ask = lambda number: ("run", "-m", model, "--session", file, "-n", 8, "--temperature", 0, "-q", f"{PROMPT} Part {number}?")
    well(*ask(0))
    # The first question is short of nothing: the same pages are saved as later.
    first = file.read_bytes()
    took, running, saved = seconds(*ask(1)), 0, 0
    for number in range(kills):
        if number % 16 == 0:
            file.write_bytes(first)
        before = file.read_bytes()
        running += killed(1.1 * took, *ask(number))
        well("check", file)
        saved += file.read_bytes() != before
    file.write_bytes(first)
    well(*ask(0))
    left = [path.name for path in folder.iterdir() if path.name not in ("talk", "cache")]
    lost(not left, f"the next run leaves {left}")
    report("sessions", running, saved=saved)


class Server:
    def __init__(self, kv_dir):
        self.url = f"http://127.0.0.1:{19000 + os.getpid() % 900}"
        words = ("serve", "-m", model, "--port", self.url.split(":")[-1], "-c", 1024, "--kv-dir", kv_dir)
        self.process = subprocess.Popen(command(*words), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self.answers():
            lost(self.process.poll() is None, "the server does not start")
            time.sleep(0.02)

    def answers(self):
        try:
            return urllib.request.urlopen(f"{self.url}/health", timeout=5).status == 200
        except OSError:
            return False

    def ask(self, number):
        """The answer to a prompt of its own; None once the server is dead."""
        body = json.dumps(dict(prompt=f"{number}. {PROMPT * 4}", max_tokens=12, temperature=0.9, seed=number)).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
        try:
            answer = json.load(urllib.request.urlopen(request, timeout=120))
        except (OSError, ValueError):
            return None
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def kill(self):
        self.process.kill()
        self.process.wait()


def prefixes():
    """Servers that are killed while they answer: whoever comes next gives the same answers, from disk where that was written."""
    kv_dir, numbers = folder / "kv", range(8)
    kv_dir.mkdir()
    server = Server(kv_dir)
    began = time.perf_counter()
    truth = [server.ask(number)[0] for number in numbers]
    took = time.perf_counter() - began
    server.kill()
    shutil.rmtree(kv_dir)
    answers, hits = 0, 0
    for turn in range(kills):
        if turn % 10 == 0:
            shutil.rmtree(kv_dir, ignore_errors=True)
            kv_dir.mkdir()
        server = Server(kv_dir)
        timer = threading.Timer(draw.random() * took, server.kill)
        timer.start()
        for number in draw.sample(numbers, len(numbers)):
            answer = server.ask(number)
            if answer is None:
                break
            lost(answer[0] == truth[number], f"prompt {number}: {answer[0]!r} instead of {truth[number]!r}")
            answers, hits = answers + 1, hits + (answer[1] >= 64)
        timer.join()
    report("prefixes on disk", kills, answers=answers, from_cache=hits)


def conversions():
    """A file that appears is whole; the next conversion is the one that nobody killed."""
    to, words = folder / "out" / "small.gguf", ("--weights", "q8_0")
    to.parent.mkdir()
    took = seconds("convert", model, "-o", to, *words)
    truth, running, whole = hashlib.sha256(to.read_bytes()).digest(), 0, 0
    for _ in range(kills):
        to.unlink(missing_ok=True)
        running += killed(1.1 * took, "convert", model, "-o", to, *words)
        if to.exists():
            lost(hashlib.sha256(to.read_bytes()).digest() == truth, "half a conversion")
            whole += 1
    to.unlink(missing_ok=True)
    well("convert", model, "-o", to, *words)
    lost(hashlib.sha256(to.read_bytes()).digest() == truth, "another conversion")
    left = [path.name for path in to.parent.iterdir() if path != to]
    report("conversions", running, whole=whole, left_behind=len(left))
    shutil.rmtree(to.parent)


class Hub(http.server.BaseHTTPRequestHandler):
    """A repository of one file, sent in a third of a second."""

    content = random.Random(7).randbytes(3 << 20)
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        digest = hashlib.sha256(self.content).hexdigest()
        if self.path.startswith("/api/"):
            large = dict(sha256=digest, size=len(self.content))
            files = [dict(rfilename="m.gguf", size=len(self.content), lfs=large)]
            self.send(200, json.dumps(dict(sha="0123456789abcdef0123456789abcdef01234567", siblings=files)).encode())
        else:
            start = int(self.headers.get("Range", "bytes=0-").split("=")[1].split("-")[0])
            self.send(206 if start else 200, self.content[start:], start)

    def send(self, status, body, start=0):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        self.end_headers()
        try:
            for at in range(0, len(body), 1 << 16):
                self.wfile.write(body[at : at + (1 << 16)])
                time.sleep(0.006 if len(body) > 1 << 16 else 0)
        except OSError:
            pass

    def log_message(self, *_):
        pass


def pulls():
    """A model that appears is whole, and a pull goes on where the killed one stopped."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.handle_error = lambda *_: None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    took = seconds("pull", "org/repo:m.gguf")
    models, running, whole = folder / "cache", 0, 0
    shutil.rmtree(models)
    for turn in range(kills):
        running += killed(1.1 * took, "pull", "org/repo:m.gguf")
        found = list(models.rglob("m.gguf"))
        lost(all(path.read_bytes() == Hub.content for path in found), f"{found}: half a model under its name")
        whole += bool(found)
        if found:
            shutil.rmtree(models)
        if turn % 4 == 3 and models.exists():
            path = well("pull", "org/repo:m.gguf").strip()
            lost(pathlib.Path(path).read_bytes() == Hub.content, "a resumed pull")
            shutil.rmtree(models)
    report("pulls", running, whole=whole)


parts = dict(pulls=pulls, conversions=conversions, sessions=sessions, prefixes=prefixes)
for part in map(parts.get, sys.argv[5:] or parts):
    part()
shutil.rmtree(folder)
