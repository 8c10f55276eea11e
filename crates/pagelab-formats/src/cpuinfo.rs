//! `/proc/cpuinfo`: the processor, in the terms of each architecture.
//!
//! x86 and arm64 print a block for each logical processor, s390 one line for each, old ARM and MIPS a
//! common head; the keys differ. Only keys that say the same thing everywhere are understood, all others
//! are passed over. A line that is not `key : value` is no cpuinfo and is named.

use pagelab_model::machine::Cpu;

use crate::ParseError;
use crate::text::{lines, parse_number, split_label, to_printable};

const FORMAT: &str = "cpuinfo";

/// Flags that decide about huge pages, page tables and virtualisation.
const RELEVANT_FLAGS: [&str; 17] = [
    "pse",
    "pdpe1gb",
    "la57",
    "lm",
    "pcid",
    "invpcid",
    "pku",
    "ospke",
    "nx",
    "vmx",
    "svm",
    "ept",
    "vpid",
    "npt",
    "hypervisor",
    "lpae",
    "sve",
];

/// The largest number of distinct cores that is counted; the kernel's own limit is 8192 processors.
const CORES_MAX: usize = 1 << 16;

#[derive(Default)]
struct CpuBuilder {
    /// Its names and its cores come at the end.
    cpu: Cpu,
    model_name: Option<String>,
    vendor: Option<String>,
    arm_implementer: Option<u64>,
    arm_part: Option<u64>,
    package: Option<u32>,
    cores: Vec<(u32, u32)>,
}

/// Reads a whole cpuinfo. An empty text is an error.
pub fn parse(text: &[u8]) -> Result<Cpu, ParseError> {
    let mut seen = CpuBuilder::default();
    for (at, line) in lines(text) {
        if line.trim_ascii().is_empty() {
            seen.package = None;
            continue;
        }
        let Some((key, value)) = split_label(line) else {
            let problem = format!("expected `key : value`, found `{}`", to_printable(line));
            return Err(ParseError::at_line(FORMAT, at, problem));
        };
        seen.add_field(at, &String::from_utf8_lossy(key), &String::from_utf8_lossy(value))?;
    }
    seen.finish()
}

impl CpuBuilder {
    fn add_field(&mut self, line_number: u64, key: &str, value: &str) -> Result<(), ParseError> {
        match key {
            // x86, arm64, ARM, RISC-V, MIPS, POWER number their processors; s390 before 4.11 put the
            // number into the key, and prints `cpu number` since.
            "processor" | "cpu number" if value.parse::<u32>().is_ok() => {
                self.cpu.threads = self.cpu.threads.saturating_add(1);
            }
            // Old ARM kernels name the processor once, with a capital letter.
            "Processor" | "model name" | "cpu model" | "cpu" | "uarch" | "Model Name" => {
                self.model_name.get_or_insert_with(|| collapse_blanks(value));
            }
            "vendor_id" => {
                self.vendor.get_or_insert_with(|| collapse_blanks(value));
            }
            "cpu family" => self.cpu.family = Some(parse_decimal(line_number, key, value)?),
            "model" if value.bytes().all(|b| b.is_ascii_digit()) => {
                self.cpu.model = Some(parse_decimal(line_number, key, value)?);
            }
            // The kernel prints `unknown` where CPUID does not say.
            "stepping" if value != "unknown" => {
                self.cpu.stepping = Some(parse_decimal(line_number, key, value)?)
            }
            "physical id" => self.package = Some(parse_decimal(line_number, key, value)?),
            "core id" => self.add_core(parse_decimal(line_number, key, value)?),
            "CPU implementer" => self.arm_implementer = Some(parse_hexadecimal(line_number, key, value)?),
            "CPU part" => self.arm_part = Some(parse_hexadecimal(line_number, key, value)?),
            // An offline or unknown clock is printed as words or as 0.
            "cpu MHz" if self.cpu.clock_khz.is_none() => self.cpu.clock_khz = parse_khz(value),
            "address sizes" => self.add_address_sizes(line_number, value)?,
            "flags" | "Features" if self.cpu.flags.is_empty() => {
                let mut flags = Vec::from(RELEVANT_FLAGS.map(str::to_owned));
                flags.retain(|flag| value.split(' ').any(|word| word == flag));
                self.cpu.flags = flags;
            }
            _ if key.strip_prefix("processor ").is_some_and(|n| n.parse::<u32>().is_ok()) => {
                self.cpu.threads = self.cpu.threads.saturating_add(1);
            }
            _ => {}
        }
        Ok(())
    }

    /// A `core id`, which counts together with the `physical id` of its block; arm64 prints neither.
    fn add_core(&mut self, core: u32) {
        if let Some(package) = self.package
            && self.cores.len() < CORES_MAX
            && let Err(at) = self.cores.binary_search(&(package, core))
        {
            self.cores.insert(at, (package, core));
        }
    }

    /// `46 bits physical, 57 bits virtual`.
    fn add_address_sizes(&mut self, line_number: u64, value: &str) -> Result<(), ParseError> {
        let sizes = value.split_once(',').and_then(|(physical, virt)| {
            let physical = physical.trim().strip_suffix(" bits physical")?.parse().ok()?;
            let virt = virt.trim().strip_suffix(" bits virtual")?.parse().ok()?;
            Some((physical, virt))
        });
        let Some((physical, virt)) = sizes else {
            let value = to_printable(value.as_bytes());
            let problem =
                format!("address sizes: expected `N bits physical, M bits virtual`, found `{value}`");
            return Err(ParseError::at_line(FORMAT, line_number, problem));
        };
        (self.cpu.physical_bits, self.cpu.virtual_bits) = (Some(physical), Some(virt));
        Ok(())
    }

    fn finish(self) -> Result<Cpu, ParseError> {
        if self.cpu.threads == 0 && self.model_name.is_none() && self.vendor.is_none() {
            return Err(ParseError::for_input(FORMAT, "no processors found"));
        }
        let arm = self.arm_implementer.map(|id| (id, self.arm_part));
        let arm_vendor = arm.map(|(id, _)| arm_vendor(id));
        let model_name = match (self.model_name, arm) {
            (Some(name), _) => name,
            (None, Some((implementer, part))) => arm_name(implementer, part),
            (None, None) => self.vendor.clone().unwrap_or_default(),
        };
        Ok(Cpu {
            model_name,
            vendor: self.vendor.or(arm_vendor).unwrap_or_default(),
            threads: self.cpu.threads.max(1),
            cores: u32::try_from(self.cores.len()).ok().filter(|&n| n > 0),
            ..self.cpu
        })
    }
}

/// `2596.150` in MHz as kHz; the kernel prints three digits behind the point.
fn parse_khz(value: &str) -> Option<u64> {
    let (whole, part) = value.split_once('.').unwrap_or((value, ""));
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(part) {
        return None;
    }
    let part: u64 = format!("{part:0<3}").get(..3)?.parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(part).filter(|&khz| khz > 0)
}

fn collapse_blanks(value: &str) -> String {
    let start: String = value.chars().take(200).collect();
    start.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn parse_decimal(line_number: u64, key: &str, value: &str) -> Result<u32, ParseError> {
    parse_number(value.as_bytes())
        .and_then(|n| u32::try_from(n).ok())
        .ok_or_else(|| not_a_number(line_number, key, value))
}

fn parse_hexadecimal(line_number: u64, key: &str, value: &str) -> Result<u64, ParseError> {
    let digits = value.strip_prefix("0x").unwrap_or(value);
    u64::from_str_radix(digits, 16).map_err(|_| not_a_number(line_number, key, value))
}

fn not_a_number(line_number: u64, key: &str, value: &str) -> ParseError {
    let problem = format!("{key} `{}` is not a number", to_printable(value.as_bytes()));
    ParseError::at_line(FORMAT, line_number, problem)
}

/// Implementer codes of the Main ID Register, as in arch/arm64/include/asm/cputype.h.
fn arm_vendor(implementer: u64) -> String {
    let known = match implementer {
        0x41 => "ARM",
        0x42 => "Broadcom",
        0x43 => "Cavium",
        0x46 => "Fujitsu",
        0x48 => "HiSilicon",
        0x4e => "NVIDIA",
        0x50 => "Applied Micro",
        0x51 => "Qualcomm",
        0x53 => "Samsung",
        0x61 => "Apple",
        0x6d => "Microsoft",
        0x70 => "Phytium",
        0xc0 => "Ampere",
        _ => return format!("implementer {implementer:#04x}"),
    };
    known.to_owned()
}

/// The names of the parts that servers have; the rest is named by its number.
fn arm_name(implementer: u64, part: Option<u64>) -> String {
    let vendor = arm_vendor(implementer);
    let Some(part) = part else { return vendor };
    let name = match (implementer, part) {
        (0x41, 0xd03) => "Cortex-A53",
        (0x41, 0xd07) => "Cortex-A57",
        (0x41, 0xd08) => "Cortex-A72",
        (0x41, 0xd0b) => "Cortex-A76",
        (0x41, 0xd0c) => "Neoverse-N1",
        (0x41, 0xd40) => "Neoverse-V1",
        (0x41, 0xd49) => "Neoverse-N2",
        (0x41, 0xd4f) => "Neoverse-V2",
        (0x41, 0xd84) => "Neoverse-V3",
        (0x41, 0xd8e) => "Neoverse-N3",
        (0xc0, 0xac3) => "AmpereOne",
        _ => return format!("{vendor} part {part:#05x}"),
    };
    format!("{vendor} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: &str = "\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 207
model name\t: Intel(R)  Xeon(R) Processor
stepping\t: 2
cpu MHz\t\t: 2596.150
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu pse msr pdpe1gb hypervisor la57x
address sizes\t: 46 bits physical, 57 bits virtual
power management:

processor\t: 1
model\t\t: 207
cpu MHz\t\t: 800.000
physical id\t: 0
core id\t\t: 0

processor\t: 2
physical id\t: 1
core id\t\t: 0
";

    #[test]
    fn x86_names_threads_cores_and_address_sizes() {
        let cpu = parse(X86.as_bytes()).unwrap();
        assert_eq!(cpu.model_name, "Intel(R) Xeon(R) Processor");
        assert_eq!((cpu.family, cpu.model, cpu.stepping), (Some(6), Some(207), Some(2)));
        assert_eq!((cpu.threads, cpu.cores), (3, Some(2)));
        assert_eq!((cpu.physical_bits, cpu.virtual_bits), (Some(46), Some(57)));
        assert_eq!(cpu.flags, ["pse", "pdpe1gb", "hypervisor"]);
        assert_eq!(cpu.clock_khz, Some(2_596_150));
    }

    #[test]
    fn a_clock_is_thousandths_of_a_megahertz_and_nothing_else() {
        let cases = [
            ("2596.150", Some(2_596_150)),
            ("2000", Some(2_000_000)),
            ("12.5", Some(12_500)),
            ("3.12345", Some(3_123)),
            ("0.000", None),
            ("unknown", None),
            (".5", None),
            ("-1.0", None),
            ("99999999999999999999", None),
        ];
        for (text, khz) in cases {
            assert_eq!(parse_khz(text), khz, "{text}");
        }
    }

    #[test]
    fn other_architectures_say_what_they_say() {
        let cases: [(&str, &str, &str, u32); 7] = [
            (
                "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n",
                "ARM Neoverse-N1",
                "ARM",
                1,
            ),
            (
                "processor\t: 0\nCPU implementer\t: 0x70\nCPU part\t: 0x662\n",
                "Phytium part 0x662",
                "Phytium",
                1,
            ),
            (
                "Processor\t: ARMv7 Processor rev 4 (v7l)\nprocessor\t: 0\n\nprocessor\t: 1\n\n\
                 Hardware\t: sun8i\n",
                "ARMv7 Processor rev 4 (v7l)",
                "",
                2,
            ),
            (
                "vendor_id       : IBM/S390\n# processors : 2\nprocessor 0: version = FF, machine = 2964\n\
                 processor 1: version = FF\n",
                "IBM/S390",
                "IBM/S390",
                2,
            ),
            (
                "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nrevision\t: 2.3 (pvr 004e 1203)\n",
                "POWER9, altivec supported",
                "",
                1,
            ),
            (
                "system type\t\t: Atheros\nprocessor\t\t: 0\ncpu model\t\t: MIPS 24Kc V7.4\n",
                "MIPS 24Kc V7.4",
                "",
                1,
            ),
            (
                "processor\t: 0\nhart\t\t: 1\nmmu\t\t: sv39\nuarch\t\t: sifive,u74-mc\n",
                "sifive,u74-mc",
                "",
                1,
            ),
        ];
        for (text, name, vendor, threads) in cases {
            let cpu = parse(text.as_bytes()).unwrap();
            assert_eq!((cpu.model_name.as_str(), cpu.vendor.as_str(), cpu.threads), (name, vendor, threads));
        }
    }

    #[test]
    fn bad_lines_are_named() {
        let cases = [
            ("", "f: no processors found (read as cpuinfo)"),
            ("power management:\n", "f: no processors found (read as cpuinfo)"),
            ("processor\t: 0\nrubbish\n", "f:2: expected `key : value`, found `rubbish` (read as cpuinfo)"),
            ("cpu family\t: six\n", "f:1: cpu family `six` is not a number (read as cpuinfo)"),
            ("CPU part\t: 0xzz\n", "f:1: CPU part `0xzz` is not a number (read as cpuinfo)"),
            (
                "address sizes\t: 46 bits\n",
                "f:1: address sizes: expected `N bits physical, M bits virtual`, found `46 bits` \
                 (read as cpuinfo)",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text.as_bytes()).unwrap_err().message_in_file("f"), message);
        }
        assert!(parse(b"stepping\t: unknown\nprocessor\t: 0\n").is_ok());
    }
}
