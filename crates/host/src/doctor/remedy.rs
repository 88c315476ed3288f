//! Remedies: commands that improve a finding and exist on this machine.
//!
//! A check names what has to be done, such as a value of the kernel or an argument of its command line. The commands for that depend on the
//! distribution, on the boot loader, and on what applies settings when the machine starts, and are found here.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Check, ROOT};
use crate::machine::boot::{BootLoader, boot_loader};
use crate::machine::distribution::{Distribution, sysctl_file, tmpfiles_file};
use crate::machine::sysfs::Sysfs;

/// Benefit of a fix. The most useful benefit comes first: results that are impossible without it, results that are wrong without it, and results that
/// are less steady without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gain {
    /// Something can be done that could not be done before.
    Ability,
    /// Pages stay on their colors.
    Colors,
    /// Times vary less.
    Times,
}

/// Cost of a fix for the rest of the machine. The cost of least concern comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Price {
    /// Other programs may get a little slower. There is no other effect. One write undoes the fix at once.
    Harmless,
    /// A user or a program gets rights that it did not have.
    Protection,
    /// The whole machine has less of something: CPUs, memory, power, or the guard against a runaway real-time thread.
    Host,
}

/// Something that improves a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Write a value to a file of the kernel.
    Set(Setting),
    /// Add arguments to the kernel's command line.
    Boot(String),
    /// Run a command. `lasting` is the command whose effect outlives the next boot, if that is another one.
    Run { now: String, lasting: Option<String> },
}

/// A value of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The file, below the root: `proc/sys/vm/max_map_count`. It may be a pattern for several files.
    pub file: String,
    /// The value to write.
    pub value: String,
    /// Argument of the kernel's command line that has the same effect.
    argument: Option<String>,
}

impl Setting {
    /// Returns the setting of `file`, a path below the root, to `value`.
    pub(super) fn of_file(file: &str, value: &str) -> Setting {
        Setting { file: file.to_owned(), value: value.to_owned(), argument: None }
    }

    /// Returns the name by which sysctl knows the setting; `None` if it is not in /proc/sys.
    fn sysctl(&self) -> Option<String> {
        Some(self.file.strip_prefix("proc/sys/")?.replace('/', "."))
    }

    /// Returns the name of the setting: that of sysctl, else the path.
    pub fn name(&self) -> String {
        self.sysctl().unwrap_or_else(|| format!("/{}", self.file))
    }

    /// Returns the line that makes the setting at every start: in a file of sysctl.d, else in one of tmpfiles.d.
    pub(super) fn line(&self) -> String {
        match self.sysctl() {
            Some(name) => format!("{name}={}", self.value),
            None => format!("w /{} - - - - {}", self.file, self.value),
        }
    }
}

/// Returns the action that sets the sysctl `name`.
pub(super) fn sysctl(name: &str, value: impl ToString) -> Action {
    Action::Set(Setting {
        file: format!("proc/sys/{}", name.replace('.', "/")),
        value: value.to_string(),
        argument: None,
    })
}

/// Returns the action that writes `value` to `file`. The kernel's `argument` has the same effect.
pub(super) fn write(file: &str, value: impl ToString, argument: Option<String>) -> Action {
    Action::Set(Setting { file: file.to_owned(), value: value.to_string(), argument })
}

/// Returns the action of a command whose effect lasts.
pub(super) fn run(command: impl Into<String>) -> Action {
    Action::Run { now: command.into(), lasting: None }
}

/// Properties of a machine that decide its commands.
#[derive(Debug)]
pub(super) struct Platform {
    files: Sysfs,
    pub(super) distribution: Distribution,
    pub(super) boot_loader: Result<BootLoader, &'static str>,
    sysctl_file: Option<&'static str>,
    tmpfiles_file: Option<&'static str>,
}

impl Platform {
    pub(super) fn read(files: &Sysfs) -> Platform {
        let distribution = Distribution::read(files);
        Platform {
            files: files.clone(),
            boot_loader: boot_loader(files, distribution.family),
            distribution,
            sysctl_file: sysctl_file(files),
            tmpfiles_file: tmpfiles_file(files),
        }
    }

    /// Enters the commands of the check's action.
    pub(super) fn name_commands(&self, check: &mut Check) {
        let Some(action) = &check.action else { return };
        let (now, lasting) = match action {
            Action::Set(setting) => (Some(self.now(setting)), self.lasting(setting)),
            Action::Run { now, lasting } => (Some(now.clone()), lasting.clone()),
            Action::Boot(arguments) => match &self.boot_loader {
                Ok(loader) => (Some(format!("{} && reboot", loader.add(arguments))), None),
                Err(place) => {
                    check.why +=
                        &format!("; no boot loader is installed here, so give the kernel `{arguments}` {place}");
                    (None, None)
                }
            },
        };
        let program = now.as_ref().and_then(|command| command.split(' ').next());
        check.package = program
            .filter(|program| !self.files.has_program(program))
            .and_then(|program| self.distribution.install(program, &self.files));
        check.privilege = now.is_some().then(|| ROOT.to_owned());
        (check.remedy, check.persistent) = (now, lasting);
    }

    /// Returns the command that makes a setting until the next boot.
    fn now(&self, setting: &Setting) -> String {
        let Setting { file, value, .. } = setting;
        match setting.sysctl() {
            // Small systems have no sysctl.
            Some(name) if self.files.has_program("sysctl") => format!("sysctl -w {name}={value}"),
            _ if file.contains('*') => format!("echo {value} | tee /{file}"),
            _ => format!("echo {value} > /{file}"),
        }
    }

    /// Returns the command that makes a setting at every start; `None` if nothing here does.
    fn lasting(&self, setting: &Setting) -> Option<String> {
        let line = setting.line();
        if setting.sysctl().is_some() {
            return Some(format!("echo {line} >> {}", self.sysctl_file?));
        }
        match (self.tmpfiles_file, &setting.argument, &self.boot_loader) {
            (Some(file), ..) => Some(format!("echo '{line}' >> {file}")),
            (None, Some(argument), Ok(loader)) => Some(loader.add(argument)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::generous;
    use super::super::{Check, examination};
    use crate::machine::sysfs::fake::Fake;

    /// Files of a machine that lets everything move and isolates nothing. Its processor is described just enough to have CPUs.
    const RESTLESS: [(&str, &str); 8] = [
        (
            "proc/cpuinfo",
            "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 42\nmodel name\t: test\nflags\t\t: lm\n",
        ),
        ("proc/self/smaps", "KernelPageSize:        4 kB\n"),
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("proc/sys/vm/compact_unevictable_allowed", "1\n"),
        ("proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
        ("proc/sys/kernel/sched_rt_period_us", "1000000\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
        ("sys/devices/system/cpu/smt/active", "1\n"),
    ];

    /// Returns the checks of a machine with these files in addition.
    fn checks(files: &[(&str, &str)]) -> Vec<Check> {
        examination(&Fake::new(&[&RESTLESS[..], files].concat()).files(), &generous()).checks
    }

    /// Returns the temporary and the persistent command for the check `name`.
    fn commands<'a>(checks: &'a [Check], name: &str) -> (Option<&'a str>, Option<&'a str>) {
        let check = checks.iter().find(|check| check.name == name).unwrap();
        (check.remedy.as_deref(), check.persistent.as_deref())
    }

    const ISOLATED: &str = "isolcpus=managed_irq,domain,3 nohz_full=3 rcu_nocbs=3";

    #[test]
    fn debian_sets_by_sysctl_tmpfiles_and_a_file_of_grub() {
        let checks = checks(&[
            ("etc/os-release", "ID=debian"),
            ("proc/1/comm", "systemd"),
            ("usr/sbin/sysctl", ""),
            ("usr/bin/systemd-tmpfiles", ""),
            ("etc/default/grub", ""),
            ("etc/default/grub.d/init-select.cfg", ""),
            ("usr/sbin/update-grub", ""),
        ]);
        assert_eq!(
            commands(&checks, "compaction"),
            (
                Some("sysctl -w vm.compact_unevictable_allowed=0"),
                Some("echo vm.compact_unevictable_allowed=0 >> /etc/sysctl.d/60-isochrome.conf")
            )
        );
        assert_eq!(
            commands(&checks, "transparent huge pages"),
            (
                Some("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
                Some(
                    "echo 'w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise' >> /etc/tmpfiles.d/60-isochrome.conf"
                )
            )
        );
        let grub = format!(
            "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {ISOLATED}\"' >> /etc/default/grub.d/60-isochrome.cfg && update-grub && reboot"
        );
        assert_eq!(commands(&checks, "isolated CPUs"), (Some(grub.as_str()), None));
        assert!(!checks.iter().any(|check| format!("{check:?}").contains("grubby")));
    }

    #[test]
    fn each_distribution_changes_the_kernels_command_line_in_its_own_way() {
        for (os_release, files, command) in [
            (
                "ID=fedora",
                &[("usr/sbin/grubby", ""), ("boot/loader/entries/a.conf", "")][..],
                "grubby --update-kernel=ALL --args=\"ARGS\"",
            ),
            (
                "ID=arch",
                &[("boot/loader/entries/arch.conf", "")],
                "sed -i '/^options/s/$/ ARGS/' /boot/loader/entries/*.conf",
            ),
            ("ID=poky", &[("boot/uEnv.txt", "")], "echo 'optargs=ARGS' >> /boot/uEnv.txt"),
            ("ID=raspbian", &[("boot/firmware/cmdline.txt", "")], "sed -i '1s/$/ ARGS/' /boot/firmware/cmdline.txt"),
            (
                "ID=alpine",
                &[("etc/update-extlinux.conf", ""), ("sbin/update-extlinux", "")],
                "sed -i '/^default_kernel_opts=/s/\"$/ ARGS\"/' /etc/update-extlinux.conf && update-extlinux",
            ),
        ] {
            let checks = checks(&[&[("etc/os-release", os_release)], files].concat());
            let isolated = command.replace("ARGS", ISOLATED) + " && reboot";
            assert_eq!(commands(&checks, "isolated CPUs"), (Some(isolated.as_str()), None), "{os_release}");
            // Without systemd, what is not a sysctl is made by the boot loader at every start.
            let huge = command.replace("ARGS", "transparent_hugepage=madvise");
            assert_eq!(commands(&checks, "transparent huge pages").1, Some(huge.as_str()), "{os_release}");
            let siblings = command.replace("ARGS", "nosmt");
            assert_eq!(commands(&checks, "hardware threads").1, Some(siblings.as_str()), "{os_release}");
        }
    }

    #[test]
    fn a_machine_without_boot_loader_and_sysctl_says_where_the_command_line_is() {
        let checks = checks(&[("etc/os-release", "ID=debian"), ("proc/1/comm", "agent")]);
        assert_eq!(commands(&checks, "isolated CPUs"), (None, None));
        let isolation = checks.iter().find(|check| check.name == "isolated CPUs").unwrap();
        assert!(isolation.why.contains(ISOLATED) && isolation.why.contains("hypervisor"), "{}", isolation.why);
        assert_eq!(commands(&checks, "compaction"), (Some("echo 0 > /proc/sys/vm/compact_unevictable_allowed"), None));
    }

    #[test]
    fn a_program_that_is_missing_comes_with_its_package() {
        let package = |files: &[(&str, &str)]| {
            let machine = Fake::new(&[&RESTLESS[..], files].concat());
            let checks =
                examination(&machine.files(), &super::super::Trials { frame_number: Ok(0), ..generous() }).checks;
            checks.into_iter().find(|check| check.name == "frame numbers").unwrap().package
        };
        assert_eq!(package(&[("etc/os-release", "ID=debian")]).as_deref(), Some("apt-get install libcap2-bin"));
        assert_eq!(package(&[("etc/os-release", "ID=fedora")]).as_deref(), Some("dnf install libcap"));
        assert_eq!(package(&[("etc/os-release", "ID=debian"), ("usr/sbin/setcap", "")]), None);
    }
}
