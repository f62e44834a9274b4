"""Checks and times every kernel on a card: python3 run.py [check] [ptx] [attention] [products] [short]. Needs torch with CUDA; writes
$OUT/results.json and $OUT/log.txt. `dry` builds all data and references of the small cases on the CPU, without a card or a launch."""
import json, os, sys, time
import torch
import check, speed
from driver import MANIFEST


def main():
    what = sys.argv[1:] or ["check", "ptx", "attention", "products"]
    log, started, results = [], time.time(), {}

    def say(*words):
        line = f"{time.time() - started:6.1f} s  " + " ".join(map(str, words))
        print(line, flush=True)
        log.append(line)

    def save():
        if out := os.environ.get("OUT"):
            open(os.path.join(out, "log.txt"), "w").write("\n".join(log) + "\n")
            json.dump(results, open(os.path.join(out, "results.json"), "w"), indent=1)

    if what == ["dry"]:
        return check.run(None, say, dry=True)
    from driver import Kernels
    results["machine"] = dict(card=torch.cuda.get_device_name(0), torch=torch.__version__, cudnn=torch.backends.cudnn.version(),
                              compiler=MANIFEST["compiler"], sources=MANIFEST["sources"])
    say(results["machine"])
    kernels = Kernels("cubin")
    failures = []
    if "check" in what:
        failures = check.run(kernels, say)
        results["check"] = failures
        save()
    if "ptx" in what:  # the path of cards that are not Hopper
        small = [case for case in check.CASES if max(case["positions"]) < 10000]
        ptx = Kernels("ptx")
        results["check_ptx"] = check.attention(ptx, say, False, small) + check.encode(ptx, say, False) + check.linear(ptx, say, False) + check.rows(ptx, say, False)
        failures += [f"ptx: {f}" for f in results["check_ptx"]]
        save()
    if "attention" in what:
        results["attention"] = speed.attention(kernels, say, speed.SHAPES[:4] if "short" in what else speed.SHAPES)
        save()
    if "products" in what:
        results["products"] = speed.products(kernels, say)
        save()
    say("FAILED: " + "; ".join(failures) if failures else "all checks passed")
    save()
    return failures


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
