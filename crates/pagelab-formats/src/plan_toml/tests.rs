//! Plans written and read back, by hand, and refused.

use super::*;

const HUGE: Bytes = Bytes(2 << 20);

/// Numbers below a bound, from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn text(&mut self) -> String {
        let letters = ['a', '/', '"', '\\', '\n', '\u{7f}', 'é', '#', '[', '=', ' ', '\u{202e}', '\''];
        (0..self.below(9)).map(|_| letters[self.below(letters.len() as u64) as usize]).collect()
    }
}

fn drawn_mapping(draw: &mut Draw) -> PlannedMapping {
    let kind = match draw.below(6) {
        5 => MappingKind::File(draw.text()),
        other => KINDS[other as usize].1.clone(),
    };
    let page = 1 << (13 + draw.below(18));
    let start = draw.below(1 << 30) * 0x1000;
    let first = (page - start % page) % page;
    let regions = (0..1 + draw.below(5)).map(|number| PlannedRegion {
        offset: first + (5 * draw.below(9) + number) * page * 50,
        page: Bytes(page),
        cost_ns: (draw.below(2) > 0).then(|| draw.below(1 << 30) << 20),
    });
    let mut regions: Vec<_> = regions.collect();
    regions.sort_by_key(|region| region.offset);
    regions.dedup_by_key(|region| region.offset);
    let length = 1 + draw.below(100);
    let cells = (0..draw.below(9)).map(|number| (number * 100, length, draw.below(1 << 30))).collect();
    let (bytes, nth) = (Bytes(draw.below(1 << 30)), draw.below(9) as u32);
    let key = MappingKey { kind, bytes, nth };
    PlannedMapping { key, start, bytes: Bytes(draw.below(1 << 30)), regions, cells }
}

#[test]
fn what_is_written_is_read_back() {
    for seed in 0..500 {
        let draw = &mut Draw(seed);
        let mut programs = Vec::new();
        for _ in 0..1 + draw.below(3) {
            let program = Program {
                path: draw.text(),
                bytes: (draw.below(2) > 0).then(|| Bytes(draw.below(1 << 30))),
                identity: (draw.below(2) > 0).then(|| draw.text()),
            };
            let mappings = (0..1 + draw.below(3)).map(|_| drawn_mapping(draw)).collect();
            programs.push(PlannedProgram { program, mappings });
        }
        let plan = HugePlan {
            source: (draw.below(2) > 0).then(|| SOURCES[draw.below(4) as usize].1),
            command: (0..draw.below(4)).map(|_| draw.text()).collect(),
            predicted: (draw.below(2) > 0).then(|| PlanGain {
                speedup_permille: draw.below(9000),
                all_speedup_permille: draw.below(9000),
                share_permille: draw.below(1001) as u32,
            }),
            programs,
        };
        let text = write(&plan, &["made\nby \u{1b}[31m".to_owned()]);
        assert_eq!(parse(text.as_bytes(), Bytes(1)).unwrap_or_else(|e| panic!("{e}\n{text}")), plan);
    }
}

#[test]
fn a_person_writes_addresses() {
    for text in [
        "addresses = [0x187b1400000, 1682368888832, 0x187b1400000]\n",
        "pagelab-plan = 1\naddresses = [0x187b1400000, 1682368888832]\npage = \"2M\"",
        "# hot\n0x187b1400000\n1682368888832\n",
    ] {
        let plan = parse(text.as_bytes(), HUGE).unwrap();
        let [program] = &plan.programs[..] else { panic!("{plan:?}") };
        let [mapping] = &program.mappings[..] else { panic!("{plan:?}") };
        assert_eq!((mapping.key.kind.clone(), mapping.start), (MappingKind::Placed, 0));
        let found: Vec<_> = mapping.regions.iter().map(|region| (region.offset, region.page)).collect();
        assert_eq!(found, [(0x187_b140_0000, HUGE), (0x187_b500_0000, HUGE)]);
    }
}

#[test]
fn what_is_no_plan_is_refused_by_its_line() {
    let mapping = |rest: &str| format!("pagelab-plan = 1\n[[program]]\n[[program.mapping]]\n{rest}");
    for (text, wanted) in [
        (String::new(), "p: no plan: a line `pagelab-plan = 1`"),
        ("a = \n".to_owned(), "p:1: "),
        ("pagelab-plan = 2\n".to_owned(), "p:1: a plan of version 2"),
        ("pagelab-plan = 1\n".to_owned(), "p: nothing is planned in it"),
        ("pagelab-plan = 1\naddresses = []\n".to_owned(), "p: nothing is planned in it"),
        ("pagelab-plan = 1\n\nsauce = 1\n".to_owned(), "p:3: \"sauce\" is no key"),
        ("pagelab-plan = 1\nsource = \"guess\"".to_owned(), "p:2: source: \"guess\" is none of exact"),
        ("addresses = [\n 0,\n 4097]\n".to_owned(), "p:3: 0x1001 is not the first byte"),
        ("addresses = [-1]\n".to_owned(), "p:1: a whole number"),
        ("addresses = [0]\npage = \"3M\"".to_owned(), "p:2: page: 3145728 bytes"),
        ("addresses = [0]\npage = \"2X\"".to_owned(), "p:2: page: a size"),
        ("addresses = 0\n".to_owned(), "p:1: a list was wanted"),
        ("0\n7\n".to_owned(), "p:2: 0x7 is not the first byte"),
        ("0\nx\n".to_owned(), "p:2: \"x\" is no address"),
        (
            "pagelab-plan = 1\npredicted = { speedup = 1.2345, all = 1, share = 0 }".to_owned(),
            "p:2: speedup: ",
        ),
        ("pagelab-plan = 1\npredicted = { speedup = 1.2, all = 1, share = 2 }".to_owned(), "p:2: share: "),
        (mapping(""), "p:3: kind is missing"),
        (mapping("kind = \"file\"\n"), "p:3: file is missing"),
        (mapping("kind = \"attic\"\n"), "p:4: kind: \"attic\" is none of"),
        (mapping("kind = \"heap\"\nregions = [\n{ offset = 1 },\n]"), "p:6: offset: 0x1 is not the first"),
        (mapping("kind = \"heap\"\nregions = [{ page = \"2M\" }]"), "p:5: offset is missing"),
        (mapping("kind = \"heap\"\nregions = [{ offset = 0 }, { offset = 0 }]"), "p:5: regions: two of them"),
        (
            mapping("kind = \"heap\"\nstart = 0x200000\nregions = [{ offset = 0xffffffffffe00000 }]"),
            "p:6: offset: 0xffffffffffe00000 is not",
        ),
        (mapping("kind = \"heap\"\ncells = [[0, 1]]"), "p:5: cells: [offset"),
        (mapping("kind = \"heap\"\ncells = [[0, 2, 1], [1, 1, 1]]"), "p:5: cells: they rise"),
        (mapping("kind = \"heap\"\nnth = 4294967296"), "p:5: nth: more"),
    ] {
        let said = parse(text.as_bytes(), HUGE).expect_err(&text).in_file("p");
        assert!(said.starts_with(wanted), "{text}\n{said}");
    }
    assert!(parse(b"pagelab-plan = 1\n# \xff", HUGE).unwrap_err().in_file("p").starts_with("p:2: not UTF-8"));
}
