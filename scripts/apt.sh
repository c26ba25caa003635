# Installing what the distribution has. Sourced by the scripts beside it.
# shellcheck shell=bash

fail() {
    echo "make tools: $1" >&2
    exit 1
}

# apt_install NEEDED PACKAGE…: installs packages, and starts no service of theirs.
# NEEDED tells a machine without apt-get what it should have.
apt_install() {
    local needed=$1
    shift
    command -v apt-get >/dev/null || fail "there is no apt-get here: please install $needed."

    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || fail "installing needs root, which \`sudo -n\` does not give here: please run \`apt-get install $*\` as root."
        as_root=(sudo -n)
    fi

    # Says no to packages that want to start their service. One that is there
    # already is the administrator's.
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        # Now, because the names are gone by then.
        # shellcheck disable=SC2064
        trap "${as_root[*]} rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
        "${as_root[@]}" chmod 755 "$policy"
    fi

    local apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y)
    echo "installing $*"
    # A list of packages that cannot be had whole may do, so only the install decides.
    "${apt_get[@]}" update || echo "make tools: apt-get update failed; going on with the lists that are there" >&2
    "${apt_get[@]}" install --no-install-recommends "$@" ||
        fail "apt-get could not install $*: its reason is above."
}
