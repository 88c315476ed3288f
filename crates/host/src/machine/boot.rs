//! The boot loader, by which the command line of the kernel is changed for the next boot.
//!
//! Every boot loader keeps that line in a file of its own form, and some need a program to carry it over. Only what is installed here is
//! considered, in an order in which the more specific one comes first: GRUB of Fedora also has loader entries, and a Raspberry Pi may have
//! the files of U-Boot.

use std::fs;

use super::distribution::Family;
use super::sysfs::Sysfs;

/// A boot loader that was found, with the command that adds arguments to the command line of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootLoader {
    /// Name of the boot loader.
    pub name: &'static str,
    /// The command before the arguments.
    before: String,
    /// The command behind the arguments.
    behind: String,
}

impl BootLoader {
    fn new(name: &'static str, before: impl Into<String>, behind: impl Into<String>) -> BootLoader {
        BootLoader { name, before: before.into(), behind: behind.into() }
    }

    /// Returns a loader whose arguments are added by sed at the end of each line of `files` that `lines` selects.
    fn edited(name: &'static str, lines: &str, files: &str) -> BootLoader {
        BootLoader::new(name, format!("sed -i '{lines}s/$/ "), format!("/' {files}"))
    }

    /// Returns this loader with the command `next` after the one that adds the arguments.
    fn then(mut self, next: &str) -> BootLoader {
        self.behind += " && ";
        self.behind += next;
        self
    }

    /// Returns the command that adds `arguments`, which hold no quotes, slashes or ampersands, from the next boot on.
    pub fn add(&self, arguments: &str) -> String {
        format!("{}{arguments}{}", self.before, self.behind)
    }
}

/// Returns the boot loader in `files`, which are below the root of the file system of a distribution of `family`. If there is none, the error
/// says where the command line of the kernel is given instead.
pub fn boot_loader(files: &Sysfs, family: Family) -> Result<BootLoader, &'static str> {
    if ["run/.containerenv", "run/systemd/container"].iter().any(|mark| files.has(mark)) {
        return Err("on the host of this container");
    }
    let is_systemd_boot = firmware_started(files, "systemd-boot");
    grubby(files)
        .or_else(|| grub(files).filter(|_| !is_systemd_boot))
        .or_else(|| systemd_boot(files, family))
        .or_else(|| raspberry_pi(files))
        .or_else(|| extlinux(files))
        .or_else(|| u_boot(files))
        .or_else(|| grub_without_generator(files))
        .ok_or(match family {
            Family::Yocto => "in the build of the image (APPEND, or UBOOT_EXTLINUX_KERNEL_ARGS)",
            _ => "in the hypervisor, the firmware or the container's host",
        })
}

/// Whether the firmware started the boot loader `name`, which has left its name in a variable. [systemd, Boot Loader Interface]
fn firmware_started(files: &Sysfs, name: &str) -> bool {
    const VARIABLE: &str = "sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
    /// Bytes of the attributes of a variable, before its value in UTF-16.
    const ATTRIBUTES: usize = 4;
    let value = fs::read(files.path(VARIABLE)).unwrap_or_default();
    let text: String = value.iter().skip(ATTRIBUTES).step_by(2).map(|byte| char::from(*byte)).collect();
    text.starts_with(name)
}

/// Returns the boot loader of Fedora and its relatives, which have one command for all boot loaders.
fn grubby(files: &Sysfs) -> Option<BootLoader> {
    let arguments = BootLoader::new("grubby", "grubby --update-kernel=ALL --args=\"", "\"");
    (files.has_program("grubby") && files.has("boot")).then_some(arguments)
}

/// GRUB with the program that makes its menu. /etc/default/grub is read by a shell, so a line at its end can add to a variable whatever the
/// quotes above. Debian reads a folder of such files as well.
fn grub(files: &Sysfs) -> Option<BootLoader> {
    const DROP_INS: &str = "etc/default/grub.d";
    if !files.has("etc/default/grub") {
        return None;
    }
    let generator = if files.has_program("update-grub") {
        "update-grub"
    } else if files.has_program("grub-mkconfig") {
        "grub-mkconfig -o /boot/grub/grub.cfg"
    } else if files.has_program("grub2-mkconfig") && files.has("boot/loader/entries") {
        "grub2-mkconfig -o /boot/grub2/grub.cfg --update-bls-cmdline"
    } else if files.has_program("grub2-mkconfig") {
        "grub2-mkconfig -o /boot/grub2/grub.cfg"
    } else {
        return None;
    };
    let is_debian = generator == "update-grub" && files.has(DROP_INS);
    let file = if is_debian { "/etc/default/grub.d/60-isochrome.cfg" } else { "/etc/default/grub" };
    let before = "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX ";
    Some(BootLoader::new("GRUB", before, format!("\"' >> {file}")).then(generator))
}

fn systemd_boot(files: &Sysfs, family: Family) -> Option<BootLoader> {
    const NAME: &str = "systemd-boot";
    const LINE: &str = "etc/kernel/cmdline";
    let makes_images = || {
        let presets = files.names("etc/mkinitcpio.d").into_iter();
        let mut texts = presets.filter_map(|name| files.text(&format!("etc/mkinitcpio.d/{name}")));
        texts.any(|text| text.lines().any(|line| line.starts_with("default_uki=")))
    };
    if files.has(LINE) && files.has_program("mkinitcpio") && makes_images() {
        return Some(BootLoader::edited(NAME, "1", "/etc/kernel/cmdline").then("mkinitcpio -P"));
    }
    if files.has(LINE) && files.has_program("kernel-install") {
        // `kernel-install add-all` is not in systemd 252 of Debian 12.
        let image = match family {
            Family::Debian => "/boot/vmlinuz-$(uname -r)",
            _ => "/usr/lib/modules/$(uname -r)/vmlinuz",
        };
        let install = format!("kernel-install add \"$(uname -r)\" \"{image}\"");
        return Some(BootLoader::edited(NAME, "1", "/etc/kernel/cmdline").then(&install));
    }
    let folders = ["boot/loader/entries", "efi/loader/entries", "boot/efi/loader/entries"];
    let folder = folders.iter().find(|folder| files.names(folder).iter().any(|name| name.ends_with(".conf")))?;
    Some(BootLoader::edited(NAME, "/^options/", &format!("/{folder}/*.conf")))
}

/// The firmware of a Raspberry Pi reads one line from a file. Since Debian 12 the file in /boot only says where the real one is.
fn raspberry_pi(files: &Sysfs) -> Option<BootLoader> {
    let file = ["boot/firmware/cmdline.txt", "boot/cmdline.txt"].into_iter().find(|file| files.has(file))?;
    Some(BootLoader::edited("Raspberry Pi firmware", "1", &format!("/{file}")))
}

/// The file extlinux.conf, which U-Boot reads as well, or the file from which the distribution makes it.
fn extlinux(files: &Sysfs) -> Option<BootLoader> {
    const NAME: &str = "extlinux";
    if files.has("etc/update-extlinux.conf") && files.has_program("update-extlinux") {
        let before = "sed -i '/^default_kernel_opts=/s/\"$/ ";
        return Some(BootLoader::new(NAME, before, "\"/' /etc/update-extlinux.conf").then("update-extlinux"));
    }
    if files.has_program("u-boot-update") {
        // Without the variable, u-boot-update takes the line of /etc/kernel/cmdline, else `ro quiet`.
        let own = files
            .text("etc/default/u-boot")
            .is_some_and(|text| text.lines().any(|line| line.starts_with("U_BOOT_PARAMETERS=")));
        let edited = if !own && files.has("etc/kernel/cmdline") {
            BootLoader::edited(NAME, "1", "/etc/kernel/cmdline")
        } else {
            let before = "echo 'U_BOOT_PARAMETERS=\"${U_BOOT_PARAMETERS:-ro quiet} ";
            BootLoader::new(NAME, before, "\"' >> /etc/default/u-boot")
        };
        return Some(edited.then("u-boot-update"));
    }
    let file = ["boot/extlinux/extlinux.conf", "boot/extlinux.conf"].into_iter().find(|file| files.has(file))?;
    Some(BootLoader::edited(NAME, "/^[[:space:]]*\\(append\\|APPEND\\)/", &format!("/{file}")))
}

/// U-Boot with a file of variables, whose boot script adds one of them to the command line of the kernel.
fn u_boot(files: &Sysfs) -> Option<BootLoader> {
    const NAME: &str = "U-Boot";
    let file =
        ["boot/uEnv.txt", "boot/firmware/uEnv.txt", "boot/armbianEnv.txt"].into_iter().find(|file| files.has(file))?;
    let text = files.text(file)?;
    let has = |key: &&&str| text.lines().any(|line| line.strip_prefix(**key).is_some_and(|rest| rest.starts_with('=')));
    match ["cmdline", "extraargs", "optargs", "bootargs"].iter().find(has) {
        Some(key) => Some(BootLoader::edited(NAME, &format!("/^{key}=/"), &format!("/{file}"))),
        None => {
            let key = if file.ends_with("armbianEnv.txt") { "extraargs" } else { "optargs" };
            Some(BootLoader::new(NAME, format!("echo '{key}="), format!("' >> /{file}")))
        }
    }
}

/// The menu of GRUB on an image that was built elsewhere, without the program that makes the menu.
fn grub_without_generator(files: &Sysfs) -> Option<BootLoader> {
    let menus = ["boot/EFI/BOOT/grub.cfg", "boot/efi/EFI/BOOT/grub.cfg", "boot/grub/grub.cfg"];
    let menu = menus.into_iter().find(|menu| files.has(menu))?;
    Some(BootLoader::edited("GRUB", "/^[[:space:]]*linux[[:space:]]/", &format!("/{menu}")))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::machine::sysfs::fake::Fake;

    const ARGUMENTS: &str = "isolcpus=managed_irq,domain,3 nohz_full=3";

    /// Adds the arguments in a machine of these files by the command that is named, and returns the name of the boot loader and the text of
    /// `edited` afterwards. Programs are stand-ins that succeed.
    fn added(family: Family, files: &[(&str, &str)], edited: &str) -> (&'static str, String) {
        let root = Fake::new(files);
        for (program, _) in files.iter().filter(|(file, _)| file.starts_with("usr/")) {
            root.write(program, "#!/bin/sh\nexit 0\n");
            root.make_executable(program);
        }
        let loader = boot_loader(&root.files(), family).expect("a boot loader");
        let path = root.files().path("");
        let at = |folder: &str| path.join(folder).display().to_string();
        // The command is meant for the root of a machine.
        let command = [" /etc/", " /boot/", " /efi/"].iter().fold(loader.add(ARGUMENTS), |line, place| {
            line.replace(place, &format!(" {}", at(place.trim_start_matches([' ', '/']))))
        });
        let paths = format!("{}:{}:{}", at("usr/sbin"), at("usr/bin"), std::env::var("PATH").unwrap());
        let output = Command::new("sh").args(["-c", &command]).env("PATH", paths).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        (loader.name, root.text(edited))
    }

    const ENTRY: &str = "title Arch\noptions root=UUID=1 rw\nlinux /vmlinuz\n";
    const EXTLINUX: &str = "label l0\n\tlinux /vmlinuz\n\tappend root=/dev/mmcblk0p2 ro\n";

    /// A boot loader's name, the family of its distribution, the files, the one that is edited, and its text afterwards.
    type Case = (&'static str, Family, &'static [(&'static str, &'static str)], &'static str, &'static str);

    const CASES: [Case; 10] = [
        (
            "systemd-boot",
            Family::Arch,
            &[("boot/loader/entries/arch.conf", ENTRY)],
            "boot/loader/entries/arch.conf",
            "title Arch\noptions root=UUID=1 rw ARGS\nlinux /vmlinuz\n",
        ),
        (
            "systemd-boot",
            Family::Arch,
            &[
                ("etc/kernel/cmdline", "root=UUID=1 rw\n"),
                ("usr/bin/mkinitcpio", ""),
                ("etc/mkinitcpio.d/linux.preset", "default_uki=\"/efi/EFI/Linux/arch.efi\"\n"),
            ],
            "etc/kernel/cmdline",
            "root=UUID=1 rw ARGS\n",
        ),
        (
            "systemd-boot",
            Family::Debian,
            &[("etc/kernel/cmdline", "root=UUID=1 ro"), ("usr/bin/kernel-install", "")],
            "etc/kernel/cmdline",
            "root=UUID=1 ro ARGS",
        ),
        (
            "Raspberry Pi firmware",
            Family::Debian,
            &[("boot/firmware/cmdline.txt", "console=tty1 rootwait\n"), ("boot/cmdline.txt", "moved\n")],
            "boot/firmware/cmdline.txt",
            "console=tty1 rootwait ARGS\n",
        ),
        (
            "extlinux",
            Family::Other,
            &[
                ("etc/update-extlinux.conf", "overwrite=1\ndefault_kernel_opts=\"quiet rootfstype=ext4\"\n"),
                ("usr/sbin/update-extlinux", ""),
            ],
            "etc/update-extlinux.conf",
            "overwrite=1\ndefault_kernel_opts=\"quiet rootfstype=ext4 ARGS\"\n",
        ),
        (
            "extlinux",
            Family::Debian,
            &[("boot/extlinux/extlinux.conf", EXTLINUX), ("etc/default/u-boot", ""), ("usr/sbin/u-boot-update", "")],
            "etc/default/u-boot",
            "U_BOOT_PARAMETERS=\"${U_BOOT_PARAMETERS:-ro quiet} ARGS\"\n",
        ),
        (
            "extlinux",
            Family::Yocto,
            &[("boot/extlinux/extlinux.conf", EXTLINUX)],
            "boot/extlinux/extlinux.conf",
            "label l0\n\tlinux /vmlinuz\n\tappend root=/dev/mmcblk0p2 ro ARGS\n",
        ),
        (
            "U-Boot",
            Family::Debian,
            &[("boot/uEnv.txt", "uname_r=6.1.0\ncmdline=coherent_pool=1M\n")],
            "boot/uEnv.txt",
            "uname_r=6.1.0\ncmdline=coherent_pool=1M ARGS\n",
        ),
        ("U-Boot", Family::Yocto, &[("boot/uEnv.txt", "fdt=a\n")], "boot/uEnv.txt", "fdt=a\noptargs=ARGS\n"),
        (
            "GRUB",
            Family::Yocto,
            &[("boot/EFI/BOOT/grub.cfg", "menuentry 'boot'{\nlinux /bzImage root=/dev/sda2\n}\n")],
            "boot/EFI/BOOT/grub.cfg",
            "menuentry 'boot'{\nlinux /bzImage root=/dev/sda2 ARGS\n}\n",
        ),
    ];

    #[test]
    fn the_named_command_adds_the_arguments_where_each_boot_loader_reads_them() {
        for (name, family, files, edited, text) in CASES {
            assert_eq!(added(family, files, edited), (name, text.replace("ARGS", ARGUMENTS)), "{files:?}");
        }
    }

    #[test]
    fn what_is_added_for_grub_is_added_whatever_the_quotes_are_and_twice() {
        for (files, edited) in [
            (
                &[("usr/sbin/update-grub", ""), ("etc/default/grub.d/init-select.cfg", "")][..],
                "etc/default/grub.d/60-isochrome.cfg",
            ),
            (&[("usr/bin/grub-mkconfig", "")], "etc/default/grub"),
            (&[("usr/sbin/grub2-mkconfig", "")], "etc/default/grub"),
        ] {
            let former = "GRUB_CMDLINE_LINUX='quiet splash'\n";
            let (name, text) = added(Family::Other, &[&[("etc/default/grub", former)], files].concat(), edited);
            let line = text.lines().last().unwrap_or_default();
            // As grub-mkconfig reads it, and once more, as if another argument had been added later.
            let script = format!("{former}{line}\n{line}\nprintf %s \"$GRUB_CMDLINE_LINUX\"");
            let line = Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
            assert_eq!(
                (name, String::from_utf8(line).unwrap()),
                ("GRUB", format!("quiet splash {ARGUMENTS} {ARGUMENTS}"))
            );
        }
    }

    #[test]
    fn the_boot_loader_that_started_the_machine_is_changed_and_grubby_where_it_is() {
        let both = [
            ("etc/default/grub", ""),
            ("usr/sbin/update-grub", ""),
            ("boot/loader/entries/debian.conf", "options ro\n"),
        ];
        let root = Fake::new(&both);
        assert_eq!(boot_loader(&root.files(), Family::Debian).unwrap().name, "GRUB");
        let started: String = "\x07\0\0\0".chars().chain("systemd-boot 252".chars().flat_map(|c| [c, '\0'])).collect();
        root.write("sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f", &started);
        assert_eq!(boot_loader(&root.files(), Family::Debian).unwrap().name, "systemd-boot");
        root.write("usr/sbin/grubby", "");
        let command = boot_loader(&root.files(), Family::Fedora).unwrap().add("nosmt");
        assert_eq!(command, "grubby --update-kernel=ALL --args=\"nosmt\"");
    }

    #[test]
    fn where_no_boot_loader_is_installed_the_place_of_the_command_line_is_named() {
        let place = |family, files: &[(&str, &str)]| boot_loader(&Fake::new(files).files(), family).unwrap_err();
        assert!(place(Family::Debian, &[]).contains("hypervisor"));
        // GRUB's settings without GRUB change nothing.
        assert!(place(Family::Debian, &[("etc/default/grub", "")]).contains("hypervisor"));
        assert!(place(Family::Yocto, &[]).contains("build of the image"));
        let inside = [("run/.containerenv", ""), ("etc/default/grub", ""), ("usr/sbin/update-grub", "")];
        assert!(place(Family::Fedora, &inside).contains("host of this container"));
    }
}
