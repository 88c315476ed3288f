//! The Linux distribution, which decides how packages are installed, and how it starts, which decides how settings are made at every start.

use schemars::JsonSchema;
use serde::Serialize;

use super::sysfs::Sysfs;

/// Family of distributions that install packages in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Debian, Ubuntu, Raspberry Pi OS, and others that use apt.
    Debian,
    /// Fedora, RHEL, and others that use dnf.
    Fedora,
    /// Arch Linux, and others that use pacman.
    Arch,
    /// An image that was built with Yocto or OpenEmbedded.
    Yocto,
    /// Any other distribution.
    Other,
}

/// The distribution that is installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Distribution {
    /// Name and version, for people.
    pub name: String,
    /// Family of the distribution.
    pub family: Family,
}

impl Distribution {
    /// Reads the distribution from `files`, which are below the root of its file system. [os-release(5)]
    pub fn read(files: &Sysfs) -> Distribution {
        let text = files.text("etc/os-release").or_else(|| files.text("usr/lib/os-release")).unwrap_or_default();
        let value =
            |key: &str| text.lines().find_map(|line| Some(unquoted(line.trim().strip_prefix(key)?.strip_prefix('=')?)));
        let name = value("PRETTY_NAME").or_else(|| value("NAME")).unwrap_or_else(|| "unknown".to_owned());
        let ids = [value("ID"), value("ID_LIKE")].map(Option::unwrap_or_default).join(" ");
        let family = ids.split_whitespace().find_map(family_of);
        // The makers of an image choose its ID freely, so what only such images have decides.
        let is_built = || files.has("etc/opkg") || ["Yocto", "OpenEmbedded"].iter().any(|word| text.contains(word));
        let family = family.unwrap_or_else(|| if is_built() { Family::Yocto } else { Family::Other });
        Distribution { name, family }
    }

    /// Returns how the package with `program` gets onto this system: a command, or a line for the build of the image. `None` if that is not
    /// known.
    pub fn install(&self, program: &str, files: &Sysfs) -> Option<String> {
        let (debian, others, yocto) = match program {
            "setcap" => ("libcap2-bin", "libcap", "libcap-bin"),
            "prlimit" => ("util-linux", "util-linux", "util-linux-prlimit"),
            _ => return None,
        };
        match self.family {
            Family::Debian => Some(format!("apt-get install {debian}")),
            Family::Fedora => Some(format!("dnf install {others}")),
            Family::Arch => Some(format!("pacman -S {others}")),
            Family::Yocto => Some(match ["opkg", "dnf"].iter().find(|manager| files.has_program(manager)) {
                Some(manager) => format!("{manager} install {yocto}"),
                None => format!("IMAGE_INSTALL:append = \" {yocto}\" in conf/local.conf of the build"),
            }),
            Family::Other => None,
        }
    }
}

/// Returns the family of a distribution by a word of its ID or ID_LIKE; `None` if the word names none that is known.
fn family_of(id: &str) -> Option<Family> {
    match id {
        "debian" | "ubuntu" | "raspbian" => Some(Family::Debian),
        "fedora" | "rhel" | "centos" => Some(Family::Fedora),
        "arch" | "archarm" => Some(Family::Arch),
        "poky" | "poky-tiny" | "nodistro" => Some(Family::Yocto),
        _ => None,
    }
}

/// Returns the value of a shell assignment: without quotes, and without the backslashes before characters.
fn unquoted(text: &str) -> String {
    let text = text.trim();
    let inner = ['"', '\''].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote));
    let mut characters = inner.unwrap_or(text).chars();
    let mut value = String::new();
    while let Some(character) = characters.next() {
        value.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    value
}

/// Returns the file whose lines `key = value` are applied when this system starts: a file of isochrome's own, or the one file there is. `None`
/// if nothing here applies such a file, as where the first process of a virtual machine or a container is a program of its own.
pub fn sysctl_file(files: &Sysfs) -> Option<&'static str> {
    const OWN: &str = "/etc/sysctl.d/60-isochrome.conf";
    match files.text("proc/1/comm")?.as_str() {
        "systemd" => Some(OWN),
        // OpenRC has `sysctl`; sysvinit of Debian has `procps`, and that of OpenEmbedded reads one file only.
        "init" | "openrc-init" if files.has("etc/init.d/sysctl") || files.has("etc/init.d/procps") => Some(OWN),
        "init" if files.text("etc/init.d/bootmisc.sh").is_some_and(|text| text.contains("sysctl.conf")) => {
            Some("/etc/sysctl.conf")
        }
        _ => None,
    }
}

/// Returns the file whose lines `w FILE - - - - VALUE` are carried out when this system starts; `None` unless systemd runs here.
/// [tmpfiles.d(5)]
pub fn tmpfiles_file(files: &Sysfs) -> Option<&'static str> {
    let runs =
        files.text("proc/1/comm").is_some_and(|first| first == "systemd") && files.has_program("systemd-tmpfiles");
    runs.then_some("/etc/tmpfiles.d/60-isochrome.conf")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::sysfs::fake::Fake;

    #[test]
    fn distributions_are_told_apart_by_id_and_by_what_they_are_like() {
        for (text, name, family) in [
            (
                "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n",
                "Debian GNU/Linux 12 (bookworm)",
                Family::Debian,
            ),
            ("NAME='Linux Mint'\nID=linuxmint\nID_LIKE=\"ubuntu debian\"", "Linux Mint", Family::Debian),
            (
                "NAME=\"Fedora Linux\"\nID=fedora\nPRETTY_NAME=\"Fedora Linux 40 (Server)\"",
                "Fedora Linux 40 (Server)",
                Family::Fedora,
            ),
            ("NAME=\"AlmaLinux\"\nID=\"almalinux\"\nID_LIKE=\"rhel centos fedora\"", "AlmaLinux", Family::Fedora),
            ("PRETTY_NAME=\"Arch Linux\"\nID=arch", "Arch Linux", Family::Arch),
            (
                "ID=poky\nNAME=\"Poky (Yocto Project Reference Distro)\"",
                "Poky (Yocto Project Reference Distro)",
                Family::Yocto,
            ),
            ("ID=alpine\nPRETTY_NAME=\"Alpine \\\"edge\\\"\"", "Alpine \"edge\"", Family::Other),
            ("# no ID here\nNOT_ID=debian", "unknown", Family::Other),
            ("", "unknown", Family::Other),
        ] {
            let root = Fake::new(&[("usr/lib/os-release", text)]);
            assert_eq!(Distribution::read(&root.files()), Distribution { name: name.to_owned(), family }, "{text}");
        }
    }

    #[test]
    fn an_image_of_its_own_name_is_known_by_its_package_manager() {
        let mine = ("etc/os-release", "ID=mydistro\nNAME=\"My Distro\"");
        let family = |root: &Fake| Distribution::read(&root.files()).family;
        assert_eq!(family(&Fake::new(&[mine])), Family::Other);
        assert_eq!(family(&Fake::new(&[mine, ("etc/opkg/opkg.conf", "")])), Family::Yocto);
    }

    #[test]
    fn packages_have_the_name_and_the_command_of_the_distribution() {
        let install = |os_release: &str, more: &[(&str, &str)]| {
            let root = Fake::new(&[&[("etc/os-release", os_release)], more].concat());
            Distribution::read(&root.files()).install("setcap", &root.files())
        };
        assert_eq!(install("ID=raspbian", &[]).as_deref(), Some("apt-get install libcap2-bin"));
        assert_eq!(install("ID=fedora", &[]).as_deref(), Some("dnf install libcap"));
        assert_eq!(install("ID=arch", &[]).as_deref(), Some("pacman -S libcap"));
        assert_eq!(install("ID=poky", &[("usr/bin/opkg", "")]).as_deref(), Some("opkg install libcap-bin"));
        assert!(install("ID=poky", &[]).unwrap().starts_with("IMAGE_INSTALL:append = \" libcap-bin\""));
        assert_eq!(install("ID=alpine", &[]), None);
    }

    #[test]
    fn settings_last_where_the_first_process_applies_them() {
        let of = |files: &[(&str, &str)]| {
            let root = Fake::new(files);
            (sysctl_file(&root.files()), tmpfiles_file(&root.files()))
        };
        let own = Some("/etc/sysctl.d/60-isochrome.conf");
        let systemd = ("usr/bin/systemd-tmpfiles", "");
        assert_eq!(of(&[("proc/1/comm", "systemd\n"), systemd]), (own, Some("/etc/tmpfiles.d/60-isochrome.conf")));
        assert_eq!(of(&[("proc/1/comm", "init\n"), ("etc/init.d/sysctl", "")]), (own, None));
        let openembedded = ("etc/init.d/bootmisc.sh", "SYSCTL_CONF=\"/etc/sysctl.conf\"\n");
        assert_eq!(of(&[("proc/1/comm", "init\n"), openembedded]), (Some("/etc/sysctl.conf"), None));
        // A container image may hold systemd without running it.
        assert_eq!(of(&[("proc/1/comm", "sleep\n"), systemd, ("etc/init.d/procps", "")]), (None, None));
    }
}
