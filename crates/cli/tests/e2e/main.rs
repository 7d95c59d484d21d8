//! End-to-end tests of the built program, over a real sshd, with trees on real file systems.
//!
//! One binary, so that it is linked once and nothing of the rig lies unused. Each test has its own folder,
//! its own sshd and its own namespaces; all run in parallel. What a test needs of the machine it declares by
//! [`need!`]; what is missing skips it, aloud, or fails it where `HAUL_TEST_REQUIRE` lists the need.
//!
//! Environment: `HAUL_TEST_BIN` tests that program instead of the built one, `HAUL_TEST_KILLS` sets how many
//! kills each kill test makes, `HAUL_TEST_CUTS` the same for power cuts, `HAUL_TEST_SEED` their seed,
//! `HAUL_TEST_REQUIRE` a comma-separated list of needs (or `all`) whose absence is an error,
//! `HAUL_TEST_SKIPS` a file that gets one line for each skip, `HAUL_TEST_KEEP` keeps the folders of tests
//! that failed, `HAUL_TEST_INTEROP` makes the trees of the interop matrix large.

#[macro_use]
mod support;

mod attributes;
mod between;
mod changed;
mod channels;
mod copy;
mod ctl;
mod dial;
mod fence;
mod follow_links;
mod ftp;
mod ftp_blocks;
mod ftp_frozen;
mod ftp_gsi;
mod ftp_in_place;
mod ftp_later;
mod ftp_lies;
mod ftp_logins;
mod ftp_names;
mod ftp_parts;
mod ftp_range;
mod ftp_replica;
mod ftp_resume;
mod ftp_sink;
mod ftp_sink_blocks;
mod ftp_sink_lines;
mod ftp_stops;
mod ftp_striped;
mod ftp_third;
mod ftp_times;
mod ftp_tls;
mod ftp_turns;
mod ftp_upload;
mod ftp_walk;
mod ftp_words;
mod given;
mod hard_links;
mod hung;
mod interop;
mod interop_clients;
mod kept;
mod layout;
mod leftovers;
mod list;
mod masks;
mod meta_rate;
mod names;
mod network;
mod one_file_system;
mod outputs;
mod owners;
mod parts;
mod path;
mod power;
mod probe;
mod protect;
mod ranges;
mod reach;
mod reflink;
mod resume;
mod retry;
mod retry_from;
mod rig;
mod roots;
mod serve_gridftp;
mod serve_gsi;
mod serve_shared;
mod serve_striped;
mod serve_tls;
mod serve_volume;
mod serve_volume_away;
mod serve_volume_tls;
mod sparse;
mod specials;
mod spill;
mod sshftp;
mod storage;
mod survive;
mod top;
mod trouble;
mod volume;
mod volume_access;
mod volume_copy;
mod volume_drain;
mod volume_files;
mod volume_fsck;
mod volume_full;
mod volume_given;
mod volume_lengths;
mod volume_older;
mod volume_patience;
mod volume_resume;
mod volume_slurm;
mod volume_told;
mod young;
