# Sourced by deploy/quickstart.sh, tests/run.sh and .ci/run: installs Debian and Ubuntu packages.
# shellcheck shell=bash

# What a build needs; the tests add their own.
# shellcheck disable=SC2034 # read by the scripts that source this file
PACKAGES_BUILD=(build-essential cmake ninja-build pkg-config libmicrohttpd-dev nettle-dev
    libjansson-dev libyaml-dev libsentencepiece-dev libonig-dev libutf8proc-dev curl
    ca-certificates)

# True when what the package is for can be used, however it was installed.
package_present() {
    case $1 in
    build-essential) command -v cc && command -v c++ ;;
    cmake | curl | pkg-config | shellcheck) command -v "$1" ;;
    ninja-build) command -v ninja ;;
    libmicrohttpd-dev) pkg-config --exists libmicrohttpd ;;
    nettle-dev) pkg-config --exists nettle ;;
    libjansson-dev) pkg-config --exists jansson ;;
    libyaml-dev) pkg-config --exists yaml-0.1 ;;
    libsentencepiece-dev) c++ -E -x c++ - <<<'#include <sentencepiece_processor.h>' ;;
    libonig-dev) pkg-config --exists oniguruma ;;
    libutf8proc-dev) pkg-config --exists libutf8proc ;;
    libcmocka-dev) pkg-config --exists cmocka ;;
    python3) python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' ;;
    python3-venv) python3 -c 'import ensurepip, venv' ;;
    ca-certificates) [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -d /etc/pki/tls ] ;;
    *) dpkg-query -W -f='${Status}' "$1" | grep -q 'ok installed' ;;
    esac >/dev/null 2>&1
}

# Prints those of the named packages that are missing, on one line.
packages_missing() {
    local package missing=()
    for package in "$@"; do
        package_present "$package" || missing+=("$package")
    done
    echo "${missing[*]}"
}

# Debian 12 and Ubuntu 22.04 are the oldest systems whose libraries are new enough.
packages_system_known() (
    [ -r /etc/os-release ] || exit 1
    # shellcheck source=/dev/null
    . /etc/os-release
    major=${VERSION_ID:-0}
    major=${major%%.*}
    case ${ID:-} in
    debian) [ "$major" -ge 12 ] || [ -z "${VERSION_ID:-}" ] ;; # testing has no number
    ubuntu) [ "$major" -ge 22 ] ;;
    *) exit 1 ;;
    esac
)

# packages_install LOG PACKAGE...: installs what is missing; no apt call when nothing is.
# Returns 2 with the list of packages where this script does not know how.
packages_install() {
    local log=$1 missing root=()
    shift
    missing=$(packages_missing "$@")
    [ -n "$missing" ] || return 0
    if ! packages_system_known; then
        echo "This system is not Debian >= 12 or Ubuntu >= 22.04. Please install what these Debian"
        echo "packages contain, then run this again:"
        echo "  $missing"
        return 2
    fi
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "Installing packages needs root or sudo. As root:"
            echo "  apt-get update && apt-get install -y $missing"
            return 2
        fi
        root=(sudo)
    fi
    echo "    apt-get install $missing"
    # Mirrors have hiccups, a machine that has just started may be updating itself, and a list that
    # cannot be had (of somebody else's repository) may not be one that is wanted.
    local options=(-o Acquire::Retries=5 -o Acquire::http::Timeout=60 -o DPkg::Lock::Timeout=300)
    # shellcheck disable=SC2086 # a list of words
    {
        "${root[@]}" apt-get "${options[@]}" update ||
            echo "apt-get update failed: trying with the lists that are here"
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get "${options[@]}" install -y --no-install-recommends $missing
    } >>"$log" 2>&1
}
