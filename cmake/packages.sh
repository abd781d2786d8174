# Sourced by ./quickstart and ./test: the Debian packages that thimble needs, and their
# installation.
# shellcheck shell=bash disable=SC2034

product_packages=(
  g++ cmake ninja-build
  libfmt-dev libxxhash-dev nlohmann-json3-dev libtomlplusplus-dev
  libdnnl-dev libhwy-dev
  libutf8proc-dev libpcre2-dev libsentencepiece-dev libzstd-dev zlib1g-dev
  libedit-dev
)
test_packages=(libgtest-dev libbenchmark-dev nodejs npm chromium zsh fish mandoc mmdebstrap libopenmpi-dev openmpi-bin iproute2
  python3 python3-numpy python3-venv mypy)
# Optional, for tests/fuzz only: without them ./test skips the fuzzers and prints a note.
fuzz_packages=(clang-19 libclang-rt-19-dev)

# Optional, for the browser's runtime (export --format html): ./test --wasm installs them.
wasm_packages=(emscripten libc++-16-dev dpkg-dev firefox-esr)

# Prints the newest clang++ that can link a fuzzer; fails if there is none. Before version 18,
# __builtin_cpu_supports lacks some of the features that thimble tests for.
fuzz_compiler() {
  local name version
  for name in clang++-{24..18} clang++; do
    version="$("$name" -dumpversion 2>/dev/null)" || continue
    if ((${version%%.*} >= 18)) &&
      "$name" -fsanitize=fuzzer,address -x c++ - -o /dev/null 2>/dev/null \
        <<<'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'; then
      echo "$name"
      return
    fi
  done
  return 1
}

# Prints the given packages that are not installed, one per line. A package provided by another one
# counts as installed: Node.js packages from outside Debian include npm.
missing_packages() {
  local installed package
  # "name, provided (= 1), provided" per installed package -> one bare name per line
  installed="$(dpkg-query -W -f '${db:Status-Status} ${Package}, ${Provides}\n' |
    awk '$1 == "installed" { sub(/^installed /, ""); gsub(/\([^)]*\)/, ""); gsub(/[ ,]+/, "\n"); print }')"
  for package in "$@"; do
    grep -qxF -- "$package" <<<"$installed" || printf '%s\n' "$package"
  done
}

# Installs missing packages as root or by sudo -n, or prints the command and exits with 2.
install_packages() {
  local missing as_root=()
  if ! command -v dpkg-query >/dev/null; then
    echo "warning: this is not Debian or Ubuntu; continuing without installing packages. Needed: $*" >&2
    return
  fi
  mapfile -t missing < <(missing_packages "$@")
  if ((${#missing[@]} == 0)); then return; fi

  if ((EUID != 0)); then
    if ! sudo -n true 2>/dev/null; then
      echo "Some packages are missing, and installing them needs root. Run:" >&2
      echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 2
    fi
    as_root=(sudo)
  fi
  echo "installing ${missing[*]}" >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing[@]}"
}
