"""Checks and times every kernel on a card: python3 run.py [check] [pages] [ptx] [attention] [chunks] [products] [tiles] [short] [small] [linear] [latent] [latents]. Needs torch with CUDA; writes
$OUT/results.json and $OUT/log.txt. `small` is for `compute-sanitizer --tool memcheck|racecheck python3 run.py small`. `latent` checks
attention over latents as cubin and as PTX, `latents` times it. `host` checks the kernels compiled for the CPU, without a card."""
import json, os, sys, time
import torch
import check, latent, speed
from driver import MANIFEST, HostKernels, Kernels


def main():
    what = sys.argv[1:] or ["check", "ptx", "attention", "chunks", "products"]
    log, started, results = [], time.time(), {}

    def say(*words):
        line = f"{time.time() - started:6.1f} s  " + " ".join(map(str, words))
        print(line, flush=True)
        log.append(line)

    def save():
        if out := os.environ.get("OUT"):
            open(os.path.join(out, "log.txt"), "w").write("\n".join(log) + "\n")
            json.dump(results, open(os.path.join(out, "results.json"), "w"), indent=1)

    if what[0] == "host":
        failures = check.small(HostKernels(*what[1:]), say)
        say("FAILED: " + "; ".join(failures) if failures else "all checks passed")
        return failures
    results["machine"] = dict(card=torch.cuda.get_device_name(0), torch=torch.__version__, cudnn=torch.backends.cudnn.version(),
                              compiler=MANIFEST["compiler"], sources=MANIFEST["sources"])
    say(results["machine"])
    kernels = Kernels("cubin")
    failures = []
    if "small" in what:  # what a sanitizer can follow in a minute
        failures = check.small(kernels, say)
        results["small"] = failures
    if "pages" in what:  # what reads and writes pages
        failures = check.fixtures(kernels, say) + check.encode(kernels, say) + check.attention(kernels, say)
        results["pages"] = failures
        save()
    if "check" in what:
        failures = check.run(kernels, say)
        results["check"] = failures
        save()
    if "ptx" in what:  # the path of cards that are not Hopper
        small = [case for case in check.CASES if max(case["positions"]) < 10000]
        ptx = Kernels("ptx")
        results["check_ptx"] = check.fixtures(ptx, say) + check.attention(ptx, say, small) + check.encode(ptx, say) + check.linear(ptx, say) + check.rows(ptx, say) + check.experts(ptx, say) + check.top(ptx, say)
        failures += [f"ptx: {f}" for f in results["check_ptx"]]
        save()
    if "attention" in what:
        results["attention"] = speed.attention(kernels, say, speed.SHAPES[:5] if "short" in what else speed.SHAPES)
        save()
    if "chunks" in what:
        results["chunks"] = speed.chunks(kernels, say)
        save()
    if "products" in what:
        results["products"] = speed.products(kernels, say)
        save()
    if "linear" in what:
        failures += check.linear(kernels, say) + check.rows(kernels, say) + check.experts(kernels, say)
        save()
    if "tiles" in what:
        results["tiles"] = speed.tiles(kernels, say, [t for t in speed.W.TYPES if t in what] or tuple(speed.W.TYPES))
        save()
    if "latent" in what:
        failures += latent.check(kernels, say, latent.TINY if "short" in what else latent.CASES)
        failures += [f"ptx: {f}" for f in latent.check(Kernels("ptx"), say)] if "short" not in what else []
        save()
    if "latents" in what:
        results["latents"] = latent.speed(kernels, say)
        save()
    say("FAILED: " + "; ".join(failures) if failures else "all checks passed")
    save()
    return failures


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
