//! Tests of plan files: round trips, plans written by hand, rejected plans.

use pagelab_model::random::SplitMix64;

use super::*;

const HUGE: Bytes = Bytes(2 << 20);

fn random_text(random: &mut SplitMix64) -> String {
    let letters = ['a', '/', '"', '\\', '\n', '\u{7f}', 'é', '#', '[', '=', ' ', '\u{202e}', '\''];
    (0..random.next_below(9)).map(|_| letters[random.next_below(letters.len() as u64) as usize]).collect()
}

fn random_mapping(random: &mut SplitMix64) -> PlannedMapping {
    let kind = match random.next_below(6) {
        5 => MappingKind::File(random_text(random)),
        other => MAPPING_KIND_WORDS[other as usize].1.clone(),
    };
    let page = 1 << (13 + random.next_below(18));
    let start = random.next_below(1 << 30) * 0x1000;
    let first = (page - start % page) % page;
    let regions = (0..1 + random.next_below(5)).map(|number| PlannedRegion {
        offset: first + (5 * random.next_below(9) + number) * page * 50,
        page: Bytes(page),
        cost_ns: (random.next_below(2) > 0).then(|| random.next_below(1 << 30) << 20),
    });
    let mut regions: Vec<_> = regions.collect();
    regions.sort_by_key(|region| region.offset);
    regions.dedup_by_key(|region| region.offset);
    let length = 1 + random.next_below(100);
    let cells =
        (0..random.next_below(9)).map(|number| (number * 100, length, random.next_below(1 << 30))).collect();
    let (bytes, nth) = (Bytes(random.next_below(1 << 30)), random.next_below(9) as u32);
    let key = MappingIdentity { kind, bytes, nth };
    PlannedMapping { key, start, bytes: Bytes(random.next_below(1 << 30)), regions, cells }
}

#[test]
fn written_plans_are_read_back() {
    for seed in 0..500 {
        let random = &mut SplitMix64::new(seed);
        let mut programs = Vec::new();
        for _ in 0..1 + random.next_below(3) {
            let program = Program {
                path: random_text(random),
                bytes: (random.next_below(2) > 0).then(|| Bytes(random.next_below(1 << 30))),
                identity: (random.next_below(2) > 0).then(|| random_text(random)),
            };
            let mappings = (0..1 + random.next_below(3)).map(|_| random_mapping(random)).collect();
            programs.push(PlannedProgram { program, mappings });
        }
        let plan = HugePlan {
            source: (random.next_below(2) > 0).then(|| SOURCE_WORDS[random.next_below(4) as usize].1),
            command: (0..random.next_below(4)).map(|_| random_text(random)).collect(),
            predicted: (random.next_below(2) > 0).then(|| PredictedGain {
                speedup_permille: random.next_below(9000),
                all_speedup_permille: random.next_below(9000),
                share_permille: random.next_below(1001) as u32,
            }),
            overrides_advice: random.next_below(2) > 0,
            programs,
        };
        let text = write_plan(&plan, &["made\nby \u{1b}[31m".to_owned()]);
        assert_eq!(parse(text.as_bytes(), Bytes(1)).unwrap_or_else(|e| panic!("{e}\n{text}")), plan);
    }
}

#[test]
fn a_list_of_addresses_is_a_plan() {
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
fn malformed_plans_are_rejected_with_their_line() {
    let mapping = |rest: &str| format!("pagelab-plan = 1\n[[program]]\n[[program.mapping]]\n{rest}");
    for (text, expected) in [
        (String::new(), "p: not a plan: expected a line `pagelab-plan = 1`"),
        ("a = \n".to_owned(), "p:1: "),
        ("pagelab-plan = 2\n".to_owned(), "p:1: unsupported plan version 2"),
        ("pagelab-plan = 1\n".to_owned(), "p: the plan is empty"),
        ("pagelab-plan = 1\naddresses = []\n".to_owned(), "p: the plan is empty"),
        ("pagelab-plan = 1\n\nsauce = 1\n".to_owned(), "p:3: unknown key `sauce`"),
        ("pagelab-plan = 1\nsource = \"guess\"".to_owned(), "p:2: source: expected one of exact"),
        ("addresses = [\n 0,\n 4097]\n".to_owned(), "p:3: 0x1001 is not aligned"),
        ("addresses = [-1]\n".to_owned(), "p:1: expected an integer"),
        ("addresses = [0]\npage = \"3M\"".to_owned(), "p:2: page: 3145728 bytes"),
        ("addresses = [0]\npage = \"2X\"".to_owned(), "p:2: page: "),
        ("addresses = 0\n".to_owned(), "p:1: expected a list"),
        ("addresses = [0]\noverrides-advice = 1".to_owned(), "p:2: overrides-advice: expected true or false"),
        ("0\n7\n".to_owned(), "p:2: 0x7 is not aligned"),
        ("0\nx\n".to_owned(), "p:2: \"x\": expected"),
        (
            "pagelab-plan = 1\npredicted = { speedup = 1.2345, all = 1, share = 0 }".to_owned(),
            "p:2: speedup: ",
        ),
        ("pagelab-plan = 1\npredicted = { speedup = 1.2, all = 1, share = 2 }".to_owned(), "p:2: share: "),
        (mapping(""), "p:3: kind is missing"),
        (mapping("kind = \"file\"\n"), "p:3: file is missing"),
        (mapping("kind = \"attic\"\n"), "p:4: kind: expected one of"),
        (mapping("kind = \"heap\"\nregions = [\n{ offset = 1 },\n]"), "p:6: offset: 0x1 is not aligned"),
        (mapping("kind = \"heap\"\nregions = [{ page = \"2M\" }]"), "p:5: offset is missing"),
        (
            mapping("kind = \"heap\"\nregions = [{ offset = 0 }, { offset = 0 }]"),
            "p:5: regions: overlapping regions at",
        ),
        (
            mapping("kind = \"heap\"\nstart = 0x200000\nregions = [{ offset = 0xffffffffffe00000 }]"),
            "p:6: offset: 0xffffffffffe00000 is not",
        ),
        (mapping("kind = \"heap\"\ncells = [[0, 1]]"), "p:5: cells: expected [offset"),
        (mapping("kind = \"heap\"\ncells = [[0, 2, 1], [1, 1, 1]]"), "p:5: cells: expected ascending"),
        (mapping("kind = \"heap\"\nnth = 4294967296"), "p:5: nth: exceeds"),
    ] {
        let message = parse(text.as_bytes(), HUGE).expect_err(&text).message_in_file("p");
        assert!(message.starts_with(expected), "{text}\n{message}");
    }
    assert!(
        parse(b"pagelab-plan = 1\n# \xff", HUGE)
            .unwrap_err()
            .message_in_file("p")
            .starts_with("p:2: not valid UTF-8")
    );
}
