#!/usr/bin/env bash
# Build the llama-cpp-python wheel once and keep it in a folder; prints the wheel's path.
#
#   engine/build_llama_wheel.sh PYTHON LOCK WHEEL_DIR
#
# PYTHON needs pip and what pyproject's extra `build` names (cmake, ninja, scikit-build-core).
# LOCK pins the version and the hash of the source. Only the `llama` and `ggml` libraries are compiled
# (78 of the 193 steps of the stock build): the project never uses llama.cpp's common, vision or
# server code. The libraries are then put into the binding's own `lib/` folder, so the wheel is
# self-contained.
#
# STOCKPOT_LLAMA_PORTABLE=1   no -march=native: the wheel runs on any x86-64 machine with AVX2 and FMA.
# CMAKE_ARGS                  more options for llama.cpp's build, for example -DGGML_BLAS=ON.
set -euo pipefail

python=$1 lock=$2 wheel_dir=$3
version=$(sed -nE 's/^llama-cpp-python==([^ ]+).*/\1/p' "$lock")
if [ "${STOCKPOT_LLAMA_PORTABLE:-0}" = 1 ]; then
    flavour=portable
    target_options=(-DGGML_NATIVE=OFF)
    [ "$(uname -m)" = x86_64 ] && target_options+=(-DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON)
else
    flavour=native
    target_options=(-DGGML_NATIVE=ON)
fi
# A native wheel is only valid for the processor it was built on, and any wheel for its options only:
# both are part of the folder's name.
processor=any
[ $flavour = native ] && processor=$(grep -m1 -E '^(flags|Features)' /proc/cpuinfo | cksum | cut -d' ' -f1)
options=$(echo "${CMAKE_ARGS:-}" | cksum | cut -d' ' -f1)
out="$wheel_dir/$flavour-$(uname -m)-$processor${CMAKE_ARGS:+-$options}"
if compgen -G "$out/llama_cpp_python-$version-*.whl" >/dev/null; then
    ls "$out"/llama_cpp_python-"$version"-*.whl
    exit 0
fi

say() { echo "[llama.cpp] $*" >&2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH="$(dirname "$python"):$PATH" # cmake and ninja of the same environment
say "building llama-cpp-python $version ($flavour) from source: about 4 minutes on 2 cores, once"
say "1/4 downloading the source (75 MB)"
"$python" -m pip download --no-deps --no-build-isolation --no-binary llama-cpp-python --require-hashes \
    --dest "$work" -r "$lock" >&2
tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work"
source=$(echo "$work"/llama_cpp_python-*/)

# Unversioned sonames: a wheel cannot hold the symbolic links that versioned ones need.
say "2/4 configuring"
# shellcheck disable=SC2086  # CMAKE_ARGS is a list of words by convention.
cmake -G Ninja -S "$source/vendor/llama.cpp" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DGGML_CCACHE=OFF \
    -DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON -DCMAKE_INSTALL_RPATH='$ORIGIN' -DCMAKE_BUILD_WITH_INSTALL_RPATH=TRUE \
    "${target_options[@]}" ${CMAKE_ARGS:-} >"$work/configure.log" 2>&1 || { cat "$work/configure.log" >&2; exit 1; }

say "3/4 compiling"
# One line a step; on failure the compiler's words, which the filter drops.
NINJA_STATUS='[%f/%t] ' cmake --build "$work/build" --target llama --parallel "$(nproc)" 2>&1 | tee "$work/build.log" |
    sed -unE 's/^\[([0-9]+\/[0-9]+)\] .*\/([^ /]+)\.o$/[llama.cpp]   \1 \2/p' >&2 ||
    { tail -40 "$work/build.log" >&2; exit 1; }
mkdir -p "$source/llama_cpp/lib"
rm -f "$source/.gitignore" # it names lib/, and what it names is left out of the wheel
cp "$work"/build/bin/*.so "$source/llama_cpp/lib/"

say "4/4 packing the wheel"
mkdir -p "$out"
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheel" \
    --config-settings cmake.define.LLAMA_BUILD=OFF "$source" >&2
"$python" -m zipfile -l "$work"/wheel/*.whl | grep libllama.so >/dev/null || { say "the wheel has no libllama.so"; exit 1; }
# Renamed into place, so that a run cut short never leaves half a wheel to be found.
mv "$work"/wheel/*.whl "$out/"
say "kept in $out"
ls "$out"/llama_cpp_python-"$version"-*.whl
