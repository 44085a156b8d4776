#!/usr/bin/env bash
# Build the llama-cpp-python wheel once and keep it in a folder.
#
#   engine/build_llama_wheel.sh PYTHON VERSION WHEEL_DIR
#
# Only the `llama` and `ggml` libraries are compiled (78 of the 193 steps of the stock build): the
# project never uses llama.cpp's common, vision or server code. The libraries are then put into the
# binding's own `lib/` folder, so the wheel is self-contained.
#
# STOCKPOT_LLAMA_PORTABLE=1   no -march=native: the wheel runs on any x86-64-v3 (AVX2) machine.
# CMAKE_ARGS                  more options for llama.cpp's build, for example -DGGML_BLAS=ON.
set -euo pipefail

python=$1 version=$2 wheel_dir=$3
if [ "${STOCKPOT_LLAMA_PORTABLE:-0}" = 1 ]; then
    flavour=portable
    target_options=(-DGGML_NATIVE=OFF)
    [ "$(uname -m)" = x86_64 ] && target_options+=(-DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON)
else
    flavour=native
    target_options=(-DGGML_NATIVE=ON)
fi
# A native wheel is only valid for the processor it was built on: the flags are part of the folder.
cpu=$(grep -m1 -E '^(flags|Features)' /proc/cpuinfo | cksum | cut -d' ' -f1)
[ $flavour = portable ] && cpu=any
out="$wheel_dir/$flavour-$(uname -m)-$cpu"
if compgen -G "$out/llama_cpp_python-$version-*.whl" >/dev/null; then
    ls "$out"/llama_cpp_python-"$version"-*.whl
    exit 0
fi

say() { echo "[llama.cpp] $*" >&2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say "building llama-cpp-python $version ($flavour) from source: about 4 minutes on 2 cores, once; kept in $out"
say "1/4 downloading the source (75 MB)"
"$python" -m pip download --quiet --progress-bar on --no-deps --no-build-isolation --no-binary :all: \
    --dest "$work" "llama-cpp-python==$version" >&2
tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work"
source=$(echo "$work"/llama_cpp_python-*/)

# Unversioned sonames: a wheel cannot hold the symbolic links that versioned ones need.
say "2/4 configuring"
# shellcheck disable=SC2086  # CMAKE_ARGS is a list of words by convention.
cmake -S "$source/vendor/llama.cpp" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DGGML_CCACHE=OFF \
    -DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON -DCMAKE_INSTALL_RPATH='$ORIGIN' -DCMAKE_BUILD_WITH_INSTALL_RPATH=TRUE \
    "${target_options[@]}" ${CMAKE_ARGS:-} >"$work/configure.log" 2>&1 || { cat "$work/configure.log" >&2; exit 1; }

say "3/4 compiling"
cmake --build "$work/build" --target llama --parallel "$(nproc)" 2>&1 | tee "$work/build.log" |
    sed -unE 's/^\[ *([0-9]+%)\] (Building|Linking) .*\/([^ ]+)$/[llama.cpp]   \1 \3/p' >&2 ||
    { tail -40 "$work/build.log" >&2; exit 1; }
mkdir -p "$source/llama_cpp/lib"
cp "$work"/build/bin/*.so "$source/llama_cpp/lib/"

say "4/4 packing the wheel"
mkdir -p "$out"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$out" -C cmake.define.LLAMA_BUILD=OFF "$source" >&2
ls "$out"/llama_cpp_python-"$version"-*.whl
