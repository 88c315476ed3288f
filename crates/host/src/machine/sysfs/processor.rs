//! Identification of the processor, from /proc/cpuinfo.

/// Identification of the processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// Vendor, such as `AuthenticAMD` or `GenuineIntel`; empty on Arm.
    pub vendor: String,
    /// Family number on x86.
    pub family: u32,
    /// Model number on x86.
    pub model: u32,
    /// Implementer number on Arm; 0x41 is Arm itself.
    pub implementer: u32,
    /// Part number on Arm; 0xd08 is the Cortex-A72.
    pub part: u32,
    /// Name of the model.
    pub name: String,
    /// Feature flags of the processor.
    pub flags: Vec<String>,
}

impl Processor {
    /// Returns the processor of the first CPU in the text of /proc/cpuinfo.
    pub fn from_cpuinfo(text: &str) -> Processor {
        let mut processor = Processor::default();
        let mut board = None;
        // In reverse order the values of the first CPU replace the later ones. The board's name follows the last CPU.
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')).rev() {
            let (key, value) = (key.trim(), value.trim());
            match key {
                "vendor_id" => processor.vendor = value.to_owned(),
                "cpu family" => processor.family = number(value).unwrap_or(0),
                "model" => processor.model = number(value).unwrap_or(0),
                "CPU implementer" => processor.implementer = number(value).unwrap_or(0),
                "CPU part" => processor.part = number(value).unwrap_or(0),
                "model name" => processor.name = value.to_owned(),
                "flags" | "Features" => processor.flags = value.split_whitespace().map(str::to_owned).collect(),
                "Model" => board = Some(value.to_owned()),
                _ => {}
            }
        }
        if processor.name.is_empty() && processor.part != 0 {
            processor.name = arm_name(processor.implementer, processor.part);
            if let Some(board) = board {
                processor.name = format!("{} ({board})", processor.name);
            }
        }
        processor
    }

    /// Whether the processor has `flag`.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f == flag)
    }

    /// Whether the processor was recognized as an Arm processor.
    pub fn is_arm(&self) -> bool {
        self.implementer != 0
    }
}

/// Parses a decimal number, or a hexadecimal number that begins with `0x`; `None` if the text is neither.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the name of an Arm core from its main id register. [Linux, arch/arm64/include/asm/cputype.h]
fn arm_name(implementer: u32, part: u32) -> String {
    match (implementer, part) {
        (0x41, 0xd03) => "Arm Cortex-A53".to_owned(),
        (0x41, 0xd05) => "Arm Cortex-A55".to_owned(),
        (0x41, 0xd07) => "Arm Cortex-A57".to_owned(),
        (0x41, 0xd08) => "Arm Cortex-A72".to_owned(),
        (0x41, 0xd09) => "Arm Cortex-A73".to_owned(),
        (0x41, 0xd0b) => "Arm Cortex-A76".to_owned(),
        (0x41, 0xd0c) => "Arm Neoverse-N1".to_owned(),
        (0x41, 0xd40) => "Arm Neoverse-V1".to_owned(),
        (0x41, 0xd49) => "Arm Neoverse-N2".to_owned(),
        _ => format!("Arm implementer {implementer:#x} part {part:#x}"),
    }
}
