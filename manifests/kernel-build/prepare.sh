# Unpacks the source: FILES ROOT
. "$1/shared.sh"
root=$2
archive=$(ls "$root"/usr/src/linux-source-*.tar.xz /usr/src/linux-source-*.tar.xz 2>/dev/null | sort -V | tail -1)
[ -n "$archive" ] || fail "no /usr/src/linux-source-*.tar.xz, neither unpacked nor installed"
mkdir source
$tied tar -C source -xf "$archive" --strip-components=1
[ -f source/Makefile ] || fail "$archive holds no kernel"
