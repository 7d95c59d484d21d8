use super::*;
use crate::testing::dn;

fn lets(text: &str, authority: &[(&str, &str)], subject: &[(&str, &str)]) -> bool {
    Policy::parse(text.as_bytes()).expect("a policy").lets(&dn(authority), &dn(subject))
}

/// Goal: the files of grids are read: comments, several subjects, several authorities, wildcards.
#[test]
fn policies_are_read_as_globus_reads_them() {
    let text = "# EACL\n access_id_CA   X509  '/C=DE/O=Grid/CN=Root'  # a comment\n pos_rights globus CA:sign\n \
                cond_subjects globus '\"/C=DE/O=Grid/*\" \"/O=Other/CN=one\"'\n\
                access_id_CA X509 '/CN=Second'\npos_rights globus CA:sign\ncond_subjects globus '/O=*/CN=fixed'\n\
                access_id_CA X509 '/CN=Quo\\'ted'\npos_rights globus CA:sign\ncond_subjects globus '\"*\"'\n";
    let root = [("C", "DE"), ("O", "Grid"), ("CN", "Root")];
    assert!(lets(text, &root, &[("C", "DE"), ("O", "Grid"), ("CN", "alice")]));
    assert!(lets(text, &root, &[("O", "Other"), ("CN", "one")]));
    assert!(!lets(text, &root, &[("O", "Other"), ("CN", "one2")]));
    assert!(!lets(text, &root, &[("C", "DE"), ("O", "Grid2"), ("CN", "alice")]));
    assert!(!lets(text, &root, &[("C", "DE"), ("O", "grid"), ("CN", "alice")]));
    assert!(lets(text, &[("CN", "Second")], &[("O", "x"), ("O", "y"), ("CN", "fixed")]));
    assert!(!lets(text, &[("CN", "Second")], &[("O", "x"), ("CN", "fixed2")]));
    assert!(lets(text, &[("CN", "Quo'ted")], &[("CN", "x")]));
    assert!(!lets(text, &[("CN", "Third")], &[("C", "DE"), ("O", "Grid"), ("CN", "alice")]));
    let any = "access_id_ANYBODY\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/*\"'\n";
    assert!(lets(any, &[("CN", "Third")], &[("O", "Grid"), ("CN", "x")]));
    let other = "access_id_USER X509 '/CN=x'\npos_rights globus CA:sign\ncond_subjects globus '\"*\"'\n";
    assert!(!lets(other, &[("CN", "x")], &[("O", "Grid"), ("CN", "x")]));
    // The two ends of a wildcard must not stand on one another.
    let tight = "access_id_CA X509 '/CN=x'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=aa*aa\"'\n";
    assert!(!lets(tight, &[("CN", "x")], &[("O", "aaa")]));
    assert!(lets(tight, &[("CN", "x")], &[("O", "aaaa")]));
}

/// Goal: a name whose text another name has, too, is nobody's subject; neither is one that hides its end.
#[test]
fn a_subject_that_only_looks_so_is_not_let() {
    let text = "access_id_CA X509 '/CN=x'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/*\"'\n";
    assert!(lets(text, &[("CN", "x")], &[("O", "Grid"), ("CN", "host/a.example.org")]));
    assert!(!lets(text, &[("CN", "x")], &[("O", "Grid/CN=alice")]));
    assert!(!lets(text, &[("CN", "x")], &[("O", "Grid"), ("CN", "a\\x2f")]));
}

/// Goal: what is not understood is refused with its reason, and lets nobody sign.
#[test]
fn what_is_not_understood_is_refused() {
    for (text, why) in [
        ("access_id_CA X509 '/CN=x", "quote that is not closed"),
        ("access_id_CA X509", "ends where an authority"),
        ("access_id_CA X509 '/CN=x'\nneg_rights globus CA:sign\n", "denies a right"),
        ("access_id_CA X509 '/CN=x'\npos_rights globus CA:sign\n", "without a condition"),
        (
            "access_id_CA X509 '/CN=x'\npos_rights globus CA:sign\npos_rights globus CA:sign\n",
            "without a condition",
        ),
        ("access_id_CA X509 '/CN=x'\npos_rights globus CA:sign\ncond_time globus '*'\n", "\"cond_time\""),
        (
            "access_id_CA X509 '/CN=x'\npos_rights globus CA:sign\ncond_subjects globus '\"*\" x'\n",
            "between subjects",
        ),
        ("access_id_CA X509 '/CN=x'\npos_rights globus CA:sign\ncond_subjects globus '\"*'\n", "not closed"),
        ("nonsense", "\"nonsense\""),
    ] {
        let error = Policy::parse(text.as_bytes()).expect_err(text);
        assert!(error.contains(why), "{text}: {error}");
    }
    assert!(Policy::parse(&vec![b' '; POLICY_LEN_MAX + 1]).is_err());
    assert!(Policy::parse(b"\xff").is_err());
    assert!(!Policy::parse(b"").expect("an empty one").lets(&dn(&[("CN", "x")]), &dn(&[("CN", "y")])));
}
