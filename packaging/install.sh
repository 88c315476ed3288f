#!/bin/sh
# Installs what `make build` has built, and removes it again. `make install`, `make uninstall` and `make deb` are how it is called.
#
#     packaging/install.sh install|uninstall
#
# Read from the environment, as make passes them:
#   BUILT      where `make build` has put everything
#   PREFIX BINDIR LIBDIR INCLUDEDIR DATADIR MANDIR ZSHDIR UNITDIR TMPFILESDIR DOCDIR     where things belong
#   DESTDIR    a folder in front of all these paths, for packages
#   PARTS      `program`, `c` (what C programs are built with), or both
#   STRIP      not empty: the program goes without its symbols as well, as Debian wants it
#
# Every file and folder that was made is written to $DOCDIR/installed, which `uninstall` reads: nothing else is ever removed.
set -eu

# What is installed, and where. The Debian package takes what this has put into an empty folder.
files() {
    case " $PARTS " in *" program "*) program ;; esac
    case " $PARTS " in *" c "*) c_library ;; esac
}

program() {
    put 755 "$BINDIR" "$BUILT/isochrome"
    put 644 "$MANDIR/man1" "$BUILT"/man/*.1
    put 644 "$DATADIR/bash-completion/completions" "$BUILT/completions/isochrome"
    put 644 "$ZSHDIR" "$BUILT/completions/_isochrome"
    put 644 "$DATADIR/fish/vendor_completions.d" "$BUILT/completions/isochrome.fish"
    put 644 "$UNITDIR" examples/serve/isochrome.service
    put 644 "$TMPFILESDIR" packaging/tmpfiles.d/isochrome.conf
    put 644 "$DOCDIR" README.md LICENSE-MIT LICENSE-APACHE packaging/THIRD-PARTY.txt
    [ -n "${DEBIAN:-}" ] || put 644 "$DOCDIR" CHANGELOG.md
    tree docs "$DOCDIR/docs"
    tree examples "$DOCDIR/examples"
}

c_library() {
    put 644 "$INCLUDEDIR" crates/c/include/isochrome.h
    put 644 "$LIBDIR" "$BUILT/libisochrome.a"
    put 644 "$LIBDIR/pkgconfig" packaging/isochrome.pc
}

# Makes a folder, and the folders above it that are missing.
folder() {
    [ -d "$DESTDIR$1" ] && return
    folder "$(dirname "$1")"
    mkdir "$DESTDIR$1"
    chmod 755 "$DESTDIR$1"
    echo "$1/" >>"$made"
}

# put MODE FOLDER FILE...
put() {
    mode=$1 into=$2
    shift 2
    folder "$into"
    for file; do
        target=$into/$(basename "$file")
        case $file in
        # These name the prefix.
        *.service | *.pc | */oci-hook.json)
            sed "s|/usr/local/bin|$BINDIR|; s|/usr/local/lib|$LIBDIR|; s|/usr/local|$PREFIX|; s|@VERSION@|$VERSION|" "$file" >"$made.file"
            install -m "$mode" "$made.file" "$DESTDIR$target"
            rm "$made.file"
            ;;
        "$BUILT/isochrome") install ${STRIP:+-s} -m "$mode" "$file" "$DESTDIR$target" ;;
        *) install -m "$mode" "$file" "$DESTDIR$target" ;;
        esac
        echo "$target" >>"$made"
    done
}

# tree FOLDER INTO: all files that have an ending, and Makefiles: programs that were built beside their sources have none.
tree() {
    find "$1" -type f ! -name '.*' ! -path '*/.*' \( -name '*.*' -o -name Makefile \) | LC_ALL=C sort >"$made.tree"
    while read -r path; do
        sub=$(dirname "$path")
        put 644 "$2${sub#"$1"}" "$path"
    done <"$made.tree"
    rm "$made.tree"
}

install_all() {
    for needed in isochrome libisochrome.a man completions; do
        [ -e "$BUILT/$needed" ] || {
            echo "install.sh: $BUILT/$needed is missing: nothing was built yet" >&2
            echo "  hint: make build" >&2
            exit 1
        }
    done
    made=$(mktemp)
    trap 'rm -f "$made" "$made".*' EXIT
    umask 022
    files
    # Folders of an earlier installation are still to be removed with this one.
    if [ -n "${DEBIAN:-}" ]; then return; fi
    folder "$DOCDIR"
    list=$DESTDIR$DOCDIR/installed
    echo "$DOCDIR/installed" >>"$made"
    if [ -e "$list" ]; then cat "$list" >>"$made"; fi
    LC_ALL=C sort -u "$made" -o "$made"
    install -m 644 "$made" "$list"
    echo "installed in $DESTDIR$PREFIX: $(grep -c '[^/]$' "$list") files; $DESTDIR$DOCDIR/installed names them"
    # Other shells look in /usr/local by themselves.
    case :${XDG_DATA_DIRS:-/usr/share}: in
    *":$DATADIR:"*) ;;
    *) if command -v fish >/dev/null; then echo "fish completes isochrome where XDG_DATA_DIRS names $DATADIR"; fi ;;
    esac
}

uninstall_all() {
    list=$DESTDIR$DOCDIR/installed
    [ -e "$list" ] || {
        echo "install.sh: $list is missing: nothing that \`make install\` has installed is there" >&2
        echo "  hint: give the PREFIX and DESTDIR of the installation: make uninstall PREFIX=$PREFIX" >&2
        exit 1
    }
    copy=$(mktemp)
    trap 'rm -f "$copy"' EXIT
    # Folders after what is in them.
    LC_ALL=C sort -r "$list" >"$copy"
    while read -r path; do
        case $path in
        */) rmdir "$DESTDIR$path" 2>/dev/null || echo "kept: $DESTDIR$path, which holds other files" ;;
        *) rm -f "$DESTDIR$path" ;;
        esac
    done <"$copy"
    echo "removed from $DESTDIR$PREFIX"
}

: "${DESTDIR=}" "${PARTS:=program c}"
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
case ${1:-} in
install) install_all ;;
uninstall) uninstall_all ;;
*)
    sed -n '2,4s/^# \{0,1\}//p' "$0" >&2
    exit 1
    ;;
esac
