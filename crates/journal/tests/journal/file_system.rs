//! One suite for the real file system and the double: what the journal relies on holds on both.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use cachetier_journal::file_system::dax::{Medium, PersistentMemory};
use cachetier_journal::file_system::{
    DaxFileSystem, Fault, FaultyFileSystem, FileSystem, Operation, PowerCut, RealFileSystem,
};

fn on_both(check: impl Fn(&dyn FileSystem, &Path)) {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    check(&RealFileSystem, temporary.path());
    let faulty = FaultyFileSystem::new();
    faulty.create_dir_all(Path::new("/d")).expect("a directory");
    check(&faulty, Path::new("/d"));
    let disk = FaultyFileSystem::new();
    disk.create_dir_all(Path::new("/d")).expect("a directory");
    check(&in_memory(&disk), Path::new("/d"));
}

/// The disk as persistent memory.
fn in_memory(disk: &FaultyFileSystem) -> DaxFileSystem {
    DaxFileSystem::new(Arc::new(disk.clone()), Arc::new(disk.clone()))
}

fn names(fs: &dyn FileSystem, dir: &Path) -> Vec<String> {
    let paths = fs.list(dir).unwrap();
    paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn create_refuses_what_exists_and_open_what_does_not() {
    on_both(|fs, dir| {
        let path = dir.join("a");
        assert_eq!(fs.open(&path, true).unwrap_err().kind(), ErrorKind::NotFound);
        fs.create(&path).unwrap();
        assert_eq!(fs.create(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert!(fs.open(&path, false).unwrap().write_at(b"x", 0).is_err());
        let missing = dir.join("missing");
        assert_eq!(fs.create(&missing.join("a")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs.list(&missing).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn writes_are_read_back_and_holes_read_as_zeros() {
    on_both(|fs, dir| {
        let file = fs.create(&dir.join("a")).unwrap();
        file.allocate(10).unwrap();
        assert_eq!(file.size().unwrap(), 10);
        assert_eq!(file.write_at(b"xyz", 4).unwrap(), 3);
        let mut buffer = [9; 20];
        assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 10);
        assert_eq!(&buffer[..10], b"\0\0\0\0xyz\0\0\0");
        assert_eq!(file.read_at(&mut buffer, 10).unwrap(), 0);
        file.allocate(5).unwrap();
        assert_eq!(file.size().unwrap(), 10, "allocating never cuts");
        file.set_size(5).unwrap();
        file.sync_data().unwrap();
        let again = fs.open(&dir.join("a"), true).unwrap();
        assert_eq!(again.read_at(&mut buffer, 0).unwrap(), 5);
    });
}

#[test]
fn rename_replaces_and_removed_files_stay_readable_while_open() {
    on_both(|fs, dir| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        fs.create(&a).unwrap().write_at(b"A", 0).unwrap();
        let old = fs.create(&b).unwrap();
        old.write_at(b"B", 0).unwrap();
        fs.rename(&a, &b).unwrap();
        fs.sync_dir(dir).unwrap();
        assert_eq!(names(fs, dir), ["b"]);
        let mut byte = [0];
        old.read_at(&mut byte, 0).unwrap();
        assert_eq!(&byte, b"B");
        let new = fs.open(&b, false).unwrap();
        fs.remove(&b).unwrap();
        new.read_at(&mut byte, 0).unwrap();
        assert_eq!(&byte, b"A");
        assert_eq!(fs.remove(&b).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn only_one_holds_the_lock_and_dropping_it_lets_go() {
    on_both(|fs, dir| {
        let path = dir.join("lock");
        let held = fs.lock(&path).unwrap();
        assert_eq!(fs.lock(&path).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(held);
        fs.lock(&path).unwrap();
    });
}

#[test]
fn names_are_listed_in_order_and_only_files() {
    on_both(|fs, dir| {
        for name in ["c", "a", "b"] {
            fs.create(&dir.join(name)).unwrap();
        }
        fs.create_dir_all(&dir.join("below")).unwrap();
        assert_eq!(names(fs, dir), ["a", "b", "c"]);
    });
}

#[test]
fn the_double_loses_at_a_power_cut_what_was_not_synced_and_only_that() {
    let fs = FaultyFileSystem::new();
    let dir = Path::new("/d");
    fs.create_dir_all(dir).unwrap();
    let synced = fs.create(&dir.join("synced")).unwrap();
    synced.write_at(b"kept", 0).unwrap();
    synced.sync_data().unwrap();
    fs.sync_dir(dir).unwrap();
    synced.write_at(b"lost", 4).unwrap();
    fs.create(&dir.join("unnamed")).unwrap().sync_data().unwrap();
    fs.cut_power(PowerCut::LoseAll);
    assert_eq!(fs.content(&dir.join("synced")).unwrap(), b"kept");
    assert_eq!(fs.content(&dir.join("unnamed")), None);
    assert!(synced.write_at(b"x", 0).is_err(), "handles die with the machine");
}

#[test]
fn the_double_reorders_unsynced_writes_at_a_power_cut() {
    // some seed keeps a later write and loses an earlier one
    let reordered = (0..64).any(|seed| {
        let fs = FaultyFileSystem::new();
        fs.create_dir_all(Path::new("/d")).unwrap();
        let path = Path::new("/d/a");
        let file = fs.create(path).unwrap();
        file.allocate(1024).unwrap();
        file.sync_data().unwrap();
        fs.sync_dir(Path::new("/d")).unwrap();
        file.write_at(&[1; 512], 0).unwrap();
        file.write_at(&[2; 512], 512).unwrap();
        fs.cut_power(PowerCut::Random(seed));
        let content = fs.content(path).unwrap();
        content[0] == 0 && content[512] == 2
    });
    assert!(reordered);
}

#[test]
fn the_double_reports_full_and_read_only_as_the_system_does() {
    let fs = FaultyFileSystem::new();
    let path = Path::new("/d/a");
    fs.create_dir_all(Path::new("/d")).unwrap();
    let file = fs.create(path).unwrap();
    fs.set_capacity(Some(100));
    assert_eq!(file.allocate(101).unwrap_err().kind(), ErrorKind::StorageFull);
    file.allocate(100).unwrap();
    file.write_at(b"reserved", 92).unwrap();
    fs.set_read_only(true);
    let refused = ErrorKind::ReadOnlyFilesystem;
    assert_eq!(file.write_at(b"x", 0).unwrap_err().kind(), refused);
    assert_eq!(fs.create(Path::new("/d/b")).unwrap_err().kind(), refused);
}

/// What is in the first 300 bytes of the file after a power cut.
fn after_a_cut(disk: &FaultyFileSystem, cut: PowerCut) -> Vec<u8> {
    disk.cut_power(cut);
    let mut content = disk.content(Path::new("/d/a")).unwrap();
    content.truncate(300);
    content
}

/// A mapped file, allocated and named for good.
fn mapped() -> (FaultyFileSystem, Arc<dyn cachetier_journal::file_system::File>) {
    let disk = FaultyFileSystem::new();
    disk.create_dir_all(Path::new("/d")).unwrap();
    let fs = in_memory(&disk);
    fs.probe(Path::new("/d")).unwrap();
    let file = fs.create(Path::new("/d/a")).unwrap();
    file.allocate(16 << 10).unwrap();
    fs.sync_dir(Path::new("/d")).unwrap();
    assert_eq!(names(&fs, Path::new("/d")), ["a"], "a probe leaves nothing");
    (disk, file)
}

#[test]
fn in_persistent_memory_what_was_written_is_kept_without_a_sync() {
    let (disk, file) = mapped();
    disk.set_faults(|operation| match operation {
        Operation::Sync(_) | Operation::Write { .. } => Some(Fault::Error(5)),
        _ => None,
    });
    file.write_at(&[7; 200], 30).unwrap();
    file.write_at(&[8; 10], 230).unwrap();
    file.sync_data().unwrap();
    let kept = after_a_cut(&disk, PowerCut::LoseAll);
    assert!(kept[30..230].iter().all(|b| *b == 7), "{kept:?}");
    assert!(kept[230..240].iter().all(|b| *b == 8), "{kept:?}");
}

#[test]
fn in_persistent_memory_what_was_not_fenced_is_there_or_not_line_by_line() {
    let (mut whole, mut part) = (0, 0);
    for seed in 0..200 {
        let (disk, _file) = mapped();
        let lines = disk.map(Path::new("/d/a"), 16 << 10).unwrap();
        lines.store(&[7; 256], 0).unwrap();
        (0..256).step_by(64).for_each(|line| lines.flush(line));
        // a fence is for the flushes of its own processor
        std::thread::scope(|s| s.spawn(|| lines.fence()).join().unwrap()).unwrap();
        let kept = after_a_cut(&disk, PowerCut::Random(seed));
        for line in kept[..256].chunks(64) {
            assert!(line.iter().all(|b| *b == line[0]), "a line is whole");
        }
        let lines = kept[..256].chunks(64).filter(|line| line[0] == 7).count();
        whole += u32::from(lines == 4);
        part += u32::from((1..4).contains(&lines));
    }
    assert!(whole > 0 && part > 100, "{whole} whole, {part} in part");
}

#[test]
fn in_persistent_memory_writes_past_the_mapping_and_after_a_cut_of_the_file_are_synced() {
    let (disk, file) = mapped();
    file.write_at(&[7; 64], 16 << 10).unwrap();
    file.sync_data().unwrap();
    file.set_size(100).unwrap();
    file.write_at(&[9; 50], 100).unwrap();
    file.sync_data().unwrap();
    let kept = after_a_cut(&disk, PowerCut::LoseAll);
    assert_eq!((kept.len(), kept[100]), (150, 9));
}

#[test]
fn a_volume_without_direct_access_says_so_and_its_files_are_synced_as_ever() {
    let folder = tempfile::tempdir().unwrap();
    let memory = PersistentMemory::detect().unwrap();
    let fs = DaxFileSystem::new(Arc::new(RealFileSystem), Arc::new(memory));
    let probed = fs.probe(folder.path());
    assert_eq!(names(&fs, folder.path()), [""; 0], "a probe leaves nothing");
    if let Err(error) = probed {
        assert_eq!(error.raw_os_error(), Some(95), "{error}");
    }
    let file = fs.create(&folder.path().join("a")).unwrap();
    file.allocate(64 << 10).unwrap();
    file.write_at(b"kept", 40_000).unwrap();
    file.sync_data().unwrap();
    let read = std::fs::read(folder.path().join("a")).unwrap();
    assert_eq!((read.len(), &read[40_000..40_004]), (64 << 10, b"kept".as_slice()));
}
