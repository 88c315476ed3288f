#!/bin/sh
# Makes the Debian packages of what `make build` has built; called by `make deb`.
#
#     packaging/deb.sh PACKAGE OUTPUT      PACKAGE: the folder in which `built` is; OUTPUT: where the packages are put
#
# The same commit makes the same bytes: every date is that of the commit.
set -eu
package=$1 output=$2

command -v dpkg-shlibdeps >/dev/null || {
    echo "deb.sh: dpkg-shlibdeps, which finds what the program depends on, is not installed" >&2
    echo "  hint: apt-get install -y dpkg-dev" >&2
    exit 1
}

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
export SOURCE_DATE_EPOCH
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
maintainer=$(sed -n 's/^maintainer = "\(.*\)"/\1/p' crates/cli/Cargo.toml)
multiarch=$(dpkg-architecture -q DEB_HOST_MULTIARCH)

# stage FOLDER NAME PART: puts the files of a package into a folder, as `make install` would put them into the file system.
stage() {
    rm -rf "${package:?}/$1"
    mkdir -p "$package/$1"
    DEBIAN=1 STRIP=1 DESTDIR=$package/$1 PARTS=$3 BUILT=$package/built PREFIX=/usr BINDIR=/usr/bin LIBDIR=/usr/lib/$multiarch \
        INCLUDEDIR=/usr/include DATADIR=/usr/share MANDIR=/usr/share/man ZSHDIR=/usr/share/zsh/vendor-completions \
        UNITDIR=/usr/lib/systemd/system TMPFILESDIR=/usr/lib/tmpfiles.d DOCDIR=/usr/share/doc/$2 sh packaging/install.sh install
    documents=$package/$1/usr/share/doc/$2
    mkdir -p "$documents"
    # Debian's own changes, as it wants to see them; what changed in isochrome itself is beside it.
    {
        echo "$2 ($version-1) unstable; urgency=medium"
        echo
        echo "  * Release $version: see changelog.gz."
        echo
        echo " -- $maintainer  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
    } >"$package/$1.changelog"
    gzip -9n <CHANGELOG.md >"$documents/changelog.gz"
}

stage deb isochrome program
stage deb-c libisochrome-dev c
mkdir -p "$output"
rm -f "$output"/*.deb
# Both have the version of the workspace.
for crate in isochrome-cli isochrome-c; do
    cargo deb --quiet --locked --no-build --no-strip -p "$crate" --output "$output/"
done
ls -l "$output"/*.deb
