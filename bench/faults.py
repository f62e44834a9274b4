"""What goes wrong around kvant, for real: python bench/faults.py KVANT MODEL [PARTS]. Needs a C compiler and Linux, and root for the part `full`.
full: no space left (a small tmpfs) for sessions, prefixes on disk, `convert` and `pull`. errors: every call that changes a file fails once with EIO,
and from every one on with ENOSPC. clock: the time of day jumps by hours and years while a server answers. storm: many processes at once on one session,
one cache and one folder of prefixes. connections: 10,000 silent connections, heads that come by the byte, and a thousand nonsense requests a second,
while one client is answered. Whatever happens, files that were there stay whole or are replaced whole, messages name the file, answers are
those given alone, and what runs next succeeds. One line of JSON for each part; a loss ends the program."""
import collections, concurrent.futures, hashlib, http.server, json, os, pathlib, random, resource, shutil, socket, subprocess, sys, tempfile, threading, time, urllib.error, urllib.request

kvant, model = map(os.path.abspath, sys.argv[1:3])
folder = pathlib.Path(tempfile.mkdtemp(prefix="kvant-faults-"))
preload = str(folder / "preload.so")
subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", preload, str(pathlib.Path(__file__).parent / "preload.c"), "-ldl"], check=True)
PROMPT = "The history of the lighthouse, told slowly. " * 6
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def lost(held, what):
    if not held:
        raise SystemExit(f"lost: {what}\nthe files are in {folder}")


def start(words, **more):
    environment = {**os.environ, "KVANT_DEVICE": "cpu", "KVANT_CACHE": str(folder / "cache"), **{key: str(value) for key, value in more.items()}}
    return subprocess.Popen([kvant, *map(str, words)], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(words, **more):
    """The exit code, what was printed, and what was complained of. A panic or a signal is a loss."""
    process = start(words, **more)
    out, complaint = process.communicate(timeout=600)
    lost(process.returncode in (0, 1, 2), f"{words} ended with {process.returncode}: {complaint[-600:]}")
    lost("panicked" not in complaint, f"{words}: {complaint[-600:]}")
    return process.returncode, out, complaint


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def report(what, **more):
    print(json.dumps(dict(what=what, **more)), flush=True)


class Server:
    def __init__(self, *options, **more):
        self.port = 21000 + random.randrange(900)
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = start(("serve", "-m", model, "--port", self.port, "-c", 1024, *options), **more)
        # Nobody may block on what it logs.
        self.log = collections.deque(maxlen=200)
        for stream in (self.process.stdout, self.process.stderr):
            threading.Thread(target=lambda stream=stream: [self.log.append(line) for line in stream], daemon=True).start()
        while self.process.poll() is None and self.get("/health") != 200:
            time.sleep(0.05)
        self.is_up = self.process.poll() is None

    def get(self, path, timeout=30):
        try:
            return urllib.request.urlopen(self.url + path, timeout=timeout).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def ask(self, number):
        body = json.dumps(dict(prompt=f"{number}. {PROMPT * 2}", max_tokens=12, temperature=0.9, seed=number)).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=300))
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def end(self):
        lost(self.process.poll() is None, f"the server ended with {self.process.returncode}: {self.log}")
        self.process.terminate()
        self.process.wait(60)


class Hub(http.server.BaseHTTPRequestHandler):
    """A repository of one file."""

    content = random.Random(7).randbytes(3 << 20)
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        start = int(self.headers.get("Range", "bytes=0-").split("=")[1].split("-")[0])
        large = dict(sha256=hashlib.sha256(self.content).hexdigest(), size=len(self.content))
        files = [dict(rfilename="m.gguf", size=len(self.content), lfs=large)]
        listing = json.dumps(dict(sha="0123456789abcdef0123456789abcdef01234567", siblings=files)).encode()
        body = listing if self.path.startswith("/api/") else self.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass

    def log_message(self, *_):
        pass


class Commands:
    """What writes files, in a folder of its own: the words of each command, what it writes, and what was there before."""

    def __init__(self, home):
        home.mkdir(exist_ok=True)
        self.home, self.session, self.converted = home, home / "talk", home / "small.gguf"
        hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        hub.handle_error = lambda *_: None
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        self.hub = dict(HF_ENDPOINT=f"http://127.0.0.1:{hub.server_port}", KVANT_CACHE=home / "cache")
        self.all = dict(session=(self.ask(1), self.session, {}), convert=(("convert", model, "-o", self.converted, "--weights", "q8_0"), self.converted, {}),
                        pull=(("pull", "org/repo:m.gguf"), None, self.hub))

    def ask(self, number):
        return ("run", "-m", model, "--session", self.session, "-n", 8, "--temperature", 0, "-q", f"{PROMPT} Part {number}?")

    def prepare(self, name):
        """A saved session is there before; nothing else is."""
        for path in self.home.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if name == "session":
            lost(run(self.ask(0))[0] == 0, "the first session")

    def check(self, name, before, code, complaint):
        """Whole or as before, and said so."""
        path = self.all[name][1]
        if name == "pull":
            found = list(self.home.rglob("m.gguf"))
            lost(all(file.read_bytes() == Hub.content for file in found), "half a model under its name")
            lost(bool(found) or code != 0, "a pull without a model")
        elif code == 0:
            lost(path.exists() and (name != "session" or run(("check", path))[0] == 0), f"{name} says that it has written")
        else:
            lost(digest(path) == before, f"{name} has failed and changed {path}")
        lost(code == 0 or len(complaint.strip()) > 10, f"{name} fails without a word")


def full():
    """A file system that fills at every size from nothing to enough."""
    home, refused, written = folder / "small", 0, 0
    home.mkdir()
    for size in (1, 4, 16, 64, 256, 1024, 2048, 65536, 262144):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k,nr_inodes=64", "none", str(home)], check=True)
        try:
            commands = Commands(home)
            for name, (words, path, more) in commands.all.items():
                for left in home.iterdir():
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                before = digest(path) if path else None
                code, _, complaint = run(words, **more)
                commands.check(name, before, code, complaint)
                refused, written = refused + (code != 0), written + (code == 0)
            for left in home.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            server = Server("--kv-dir", home)
            truth = [server.ask(number) for number in range(3)]
            lost([server.ask(number)[0] for number in range(3)] == [text for text, _ in truth], "other answers without room for prefixes")
            server.end()
        finally:
            subprocess.run(["umount", "-l", str(home)], check=True)
    report("no space left", sizes=9, refused=refused, written=written)


def errors():
    """Each call fails once, and everything from each call on."""
    home = folder / "errors"
    commands, counts, refused = Commands(home), {}, 0
    for name, (words, path, more) in commands.all.items():
        commands.prepare(name)
        counted = folder / "count"
        run(words, LD_PRELOAD=preload, FAULT_DIR=home, FAULT_COUNT=counted, **more)
        calls = int(counted.read_text())
        places = sorted({*range(1, min(calls, 12) + 1), *(round(part * calls / 12) for part in range(1, 13)), max(1, calls - 1)} - {0})
        counts[name] = dict(calls=calls, tried=2 * len(places))
        for at in places:
            for lasting, number in ((0, 5), (1, 28)):
                commands.prepare(name)
                before = digest(path) if path else None
                code, _, complaint = run(words, LD_PRELOAD=preload, FAULT_DIR=home, FAULT_AT=at, FAULT_LASTING=lasting, FAULT_ERRNO=number, **more)
                commands.check(name, before, code, complaint)
                refused += code != 0
                code, _, complaint = run(words, **more)
                lost(code == 0, f"{name} after a fault at {at}: {complaint}")
    kv_dir = home / "kv"
    kv_dir.mkdir()
    server = Server()
    truth = [server.ask(number)[0] for number in range(4)]
    server.end()
    refusals = 0
    for at in (1, 2, 3, 5, 8, 13, 30):
        for lasting, number in ((0, 5), (1, 28)):
            server = Server("--kv-dir", kv_dir, LD_PRELOAD=preload, FAULT_DIR=kv_dir, FAULT_AT=at, FAULT_LASTING=lasting, FAULT_ERRNO=number)
            if not server.is_up:
                time.sleep(0.2)
                lost(any(str(kv_dir) in line for line in server.log), f"the server does not start and does not say why: {server.log}")
                refusals += 1
                continue
            lost([server.ask(number)[0] for number in range(4)] == truth, f"other answers with a fault at {at}")
            server.end()
    report("calls that fail", refused=refused, servers=14, servers_refused=refusals, **counts)


def clock():
    """Answers, prefixes on disk and sessions while the time of day jumps."""
    kv_dir = folder / "clock"
    kv_dir.mkdir()
    server = Server()
    truth = [server.ask(number)[0] for number in range(4)]
    server.end()
    answers = 0
    for _ in range(3):
        server = Server("--kv-dir", kv_dir, LD_PRELOAD=preload, CLOCK_JUMPS=1)
        began = time.monotonic()
        while time.monotonic() - began < 12:
            for number in range(4):
                lost(server.ask(number)[0] == truth[number], "another answer when the clock has jumped")
                answers += 1
            lost(server.get("/metrics") == 200 and server.get("/v1/models") == 200, "the server does not answer")
        server.end()
    report("clock jumps", jumps=36, answers=answers)


def storm():
    """Many processes at once."""
    commands, ends, said = Commands(folder / "storm"), collections.Counter(), {}
    lost(run(commands.ask(0))[0] == 0, "the first session")
    jobs = [("version", ("--version",), {})] * 100 + [("session", commands.ask(number), {}) for number in range(16)]
    jobs += [("pull", *commands.all["pull"][::2])] * 12 + [("convert", *commands.all["convert"][::2])] * 4 + [("check", ("check", model), {})] * 16
    random.Random(1).shuffle(jobs)
    processes = [(name, start(words, **more)) for name, words, more in jobs]
    for name, process in processes:
        complaint = process.communicate(timeout=900)[1]
        lost(process.returncode in (0, 1, 2) and "panicked" not in complaint, f"{name} ended with {process.returncode}: {complaint[-600:]}")
        ends[name, process.returncode] += 1
        if process.returncode:
            said[name] = complaint.strip().splitlines()[-1].replace(str(folder), "...")
    lost(run(("check", commands.session))[0] == 0, "the session that all wrote")
    found = list(commands.home.rglob("m.gguf"))
    lost(len(found) == 1 and found[0].read_bytes() == Hub.content, f"the model that all pulled: {found}")
    lost(run(("check", commands.converted))[0] == 0, "the file that all converted")
    report("storm", processes=len(jobs), ends={f"{name} {code}": count for (name, code), count in sorted(ends.items())}, said=said)


def connections():
    """Silence, slowness and nonsense, and one good client meanwhile."""
    server = Server()
    truth = [server.ask(number)[0] for number in range(4)]
    address = ("127.0.0.1", server.port)
    alone = []
    for number in range(4):
        began = time.perf_counter()
        server.ask(number)
        alone.append(time.perf_counter() - began)
    measured = {}

    def good(kind, seconds, beside):
        times, until = [], time.monotonic() + seconds
        ending = threading.Event()
        others = [threading.Thread(target=work, args=(ending,), daemon=True) for work in beside]
        for other in others:
            other.start()
        time.sleep(2)
        while time.monotonic() < until:
            for number in range(4):
                began = time.perf_counter()
                lost(server.ask(number)[0] == truth[number], f"another answer beside {kind}")
                times.append(time.perf_counter() - began)
            lost(server.get("/health", 10) == 200, f"no health beside {kind}")
        ending.set()
        for other in others:
            other.join(30)
        measured[kind] = dict(answers=len(times), slowest_s=round(max(times), 2))

    counted = collections.Counter()

    def silent(ending):
        held = []
        while not ending.is_set():
            while len(held) < 10_000 and not ending.is_set():
                try:
                    held.append(socket.create_connection(address, 5))
                    counted["opened"] += 1
                except OSError:
                    counted["not opened"] += 1
                    break
            counted["held"] = max(counted["held"], len(held))
            time.sleep(1)
        for one in held:
            one.close()

    def slow(ending):
        held = []
        while not ending.is_set():
            while len(held) < 300:
                try:
                    held.append(socket.create_connection(address, 5))
                    held[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: ")
                except OSError:
                    break
            for one in list(held):
                try:
                    one.sendall(b"a")
                except OSError:
                    held.remove(one)
                    counted["slow ones shut"] += 1
            time.sleep(0.5)

    def nonsense(ending):
        """Requests by the fifty on one connection after another, as fast as they are answered."""
        draw = random.Random(threading.get_ident())
        paths = ["/v1/completions", "/v1/chat/completions", "/api/chat", "/nowhere", "/v1/messages"]
        while not ending.is_set():
            batch = b""
            for body in (draw.randbytes(draw.randrange(200)) for _ in range(50)):
                batch += f"POST {draw.choice(paths)} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            try:
                with socket.create_connection(address, 5) as one:
                    reader = one.makefile("rb")
                    for _ in range(20):
                        one.sendall(batch)
                        for _ in range(50):
                            status, length = int(reader.readline().split()[1]), 0
                            lost(400 <= status < 500 or status == 503, f"{status} for nonsense")
                            while line := reader.readline().strip():
                                length = int(line.split(b":")[1]) if line.lower().startswith(b"content-length") else length
                            reader.read(length)
                            counted["nonsense"] += 1
                        if ending.is_set():
                            break
            except (OSError, IndexError):
                counted["nonsense cut off"] += 1

    good("10,000 silent connections", 60, [silent])
    good("300 slow heads", 30, [slow])
    began = time.monotonic()
    good("nonsense", 30, [nonsense] * 4)
    counted["nonsense a second"] = round(counted["nonsense"] / (time.monotonic() - began))
    server.end()
    report("connections", alone_s=round(max(alone), 2), beside=measured, counts=counted)


parts = dict(full=full, errors=errors, clock=clock, storm=storm, connections=connections)
for part in map(parts.get, sys.argv[3:] or parts):
    part()
shutil.rmtree(folder, ignore_errors=True)
