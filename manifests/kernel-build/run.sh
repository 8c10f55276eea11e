# One run: FILES DATA ROOT JOBS TARGET
. "$1/shared.sh"
source=$2/source root=$3 jobs=$4 target=$5
# flex and bison look for their helpers where they would be installed.
if [ -x "$root/usr/bin/m4" ]; then export M4="$root/usr/bin/m4"; fi
if [ -d "$root/usr/share/bison" ]; then export BISON_PKGDATADIR="$root/usr/share/bison"; fi
mkdir objects
build() { $tied make -s -C "$source" O="$PWD/objects" KCONFIG_NOSILENTUPDATE=1 "$@" >build.log 2>&1; }
build tinyconfig || { tail -5 build.log; fail "tinyconfig failed"; }
began=$(now)
build -j"$jobs" "$target" || { tail -5 build.log; fail "the build failed"; }
ended=$(now)
objects=$(find objects -name '*.o' | wc -l)
case $target in
vmlinux) [ -s objects/vmlinux ] || wrong "make ended well, and there is no vmlinux" ;;
*) [ -s "objects/${target}built-in.a" ] || wrong "make ended well, and there is no ${target}built-in.a" ;;
esac
echo "build time: $(seconds "$began" "$ended") s"
echo "objects: $objects"
