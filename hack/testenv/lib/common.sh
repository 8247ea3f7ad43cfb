# Sourced by testenv.
# shellcheck shell=bash

say() { printf 'testenv: %s\n' "$*" >&2; }

die() {
  say "$1"
  shift
  local line
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

usage_error() {
  say "$*"
  printf '  see %s --help\n' "$0" >&2
  exit 2
}

seconds_since() { printf '%s s' "$((SECONDS - $1))"; }

cache_dir() {
  if [[ -n ${STAGESET_TESTENV_CACHE:-} ]]; then
    realpath -m "$STAGESET_TESTENV_CACHE"
  elif [[ -n ${XDG_CACHE_HOME:-} ]]; then
    realpath -m "$XDG_CACHE_HOME/stageset-testenv"
  elif [[ -n ${HOME:-} ]]; then
    realpath -m "$HOME/.cache/stageset-testenv"
  else
    die 'there is no place for the cache' 'set STAGESET_TESTENV_CACHE, XDG_CACHE_HOME or HOME'
  fi
}

need_linux_tools() {
  local tool missing=()
  for tool in flock setsid realpath sha256sum; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  ((${#missing[@]} == 0)) || die "missing: ${missing[*]}" 'they come with util-linux and coreutils'
  [[ -r /proc/self/environ ]] || die 'no /proc here: testenv runs on Linux'
}

need_go() {
  command -v go >/dev/null || die 'go is missing, and there is something to build' \
    "install Go $GO_MINIMUM or newer"
  local version
  version=$(go env GOVERSION)
  version=${version#go}
  [[ $(printf '%s\n' "$GO_MINIMUM" "${version%%[- ]*}" | sort -V | head -n 1) == "$GO_MINIMUM" ]] ||
    die "Go $version is too old" "install Go $GO_MINIMUM or newer"
}

need_git() {
  command -v git >/dev/null || die 'git is missing, which serves the repositories of --with flux' 'install it'
  [[ -x $(git --exec-path)/git-http-backend ]] ||
    die 'this git has no http-backend' 'install the whole of it (some systems split it up)'
}
