#!/usr/bin/env python3
"""Breaks the guarantees of both nodes one by one, each at its fail point in the sources (common/base/fail_point.h),
and expects a test to notice.

usage: fail_points.py BUILD_DIR [NAME...]   of a build with CAIRN_FAIL_POINTS; all fail points without a name

Those that rules.py names for a rule of the store must be noticed by the very tests that it names, the others by the
test that is named here. Prints those that no test noticed, and fails if there is one.
"""
import concurrent.futures
import os
import re
import subprocess
import sys

import rules

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
SOURCES = ("common", "kv-node", "compute-node", "clients")
TEST_TIME_MAX_S = 300
# With this one the test, which takes a second, does not end.
HANG_TIME_MAX_S = 60
HANGS = {"a damaged cluster is placed for room for ever"}
HISTORY = "tests/unit/engine/history_test"
STATE = "tests/unit/session_state/session_state_test"
UTIL = "tests/unit/util/util_test"
ROWS = "tests/unit/layout_rows/layout_rows_test"
POWER_CUTS = "tests/crash/power_cut_test"
ENGINE = "tests/unit/engine/engine_test"
FAULTS = "tests/unit/engine/engine_fault_test"
CACHE = "tests/unit/cache/cache_test"
DEVICE = "tests/unit/device/device_test"
LAYOUT = "tests/unit/layout/layout_test"
META = "tests/unit/meta/meta_test"
RETRIEVAL = "tests/unit/retrieval/cairn_retrieval_test"
PAGES = "tests/unit/engine/page_io_test"
BY_RULE = ""
FAILED, HUNG, SKIPPED, PASSED, LATE = "failed", "hung as they must", "skipped", "noticed nothing", "did not end"
# What a program needs to be quick and to notice.
ENVIRONMENT = {HISTORY: {"CAIRN_TEST_HISTORIES": "20"}}

# name, the program with the test that must fail, that test
FAIL_POINTS = [
    ("no flush before the commit", HISTORY, "HistoryTest.EverySessionShowsItsLastCheckpointAndWhatFollowedIt"),
    ("a flush of the thread pool's device does nothing", DEVICE, "Engines/FileDevice.AFlushIsTheKernelsAnswer/threads"),
    ("a flush of io_uring's device does nothing", DEVICE, "Engines/FileDevice.AFlushIsTheKernelsAnswer/io_uring"),
    ("a write that failed is forgotten", FAULTS, "EngineFaultTest.FailedWriteEndsTheAttachmentAtItsLastCheckpoint"),
    ("a flush that failed is forgotten", FAULTS, "EngineFaultTest.FailedFlushCommitsNothing"),
    ("a disk that does not answer is taken for damage", FAULTS, "EngineFaultTest.CarriedEntriesAreReadAgainToo"),
    ("rows that change behind the cut are committed (rule 8)", ENGINE, BY_RULE),
    ("log runs are free at the cut (rule 17)", ENGINE, BY_RULE),
    ("operations of older epochs are applied (rule 12)", ENGINE, BY_RULE),
    ("a seal by the node keeps the epoch (rule 2)", ENGINE, BY_RULE),
    ("the node seals what is attached (rule 2)", ENGINE, BY_RULE),
    ("another app's sessions are there", ENGINE, "EngineAppsTest.AnotherAppsSessionsAreNotThere"),
    ("damage of another app's session tells that it is there", ENGINE,
     "EngineAppsTest.ADamagedSessionOfAnotherAppIsNotThereEither"),
    ("forks stand on other apps' segments", ENGINE, "EngineAppsTest.NothingIsBuiltOnAnotherAppsSegmentsOrSessions"),
    ("a position is evicted twice", STATE, "SessionStateTest.PositionsAreEvictedOnceAndOfHeadsOrOfAllHeads"),
    ("a seal without new positions seals (rule 2)", ENGINE, BY_RULE),
    ("the bit of a stale index row is not stored (rule 11)", ENGINE, BY_RULE),
    ("a checkpoint does not wait for the one before (rule 8)", ENGINE, BY_RULE),
    ("a seal goes over to the next segment at its commit (rule 2)", ENGINE, BY_RULE),
    ("a sealed segment's log runs stay the session's (rule 3)", ENGINE, BY_RULE),
    ("a sealed segment goes while others stand on it (rule 3)", ENGINE, BY_RULE),
    ("an open goes on with the attachment that is there (rule 4)", ENGINE, BY_RULE),
    ("the epoch of an attachment is not stored (rule 4)", ENGINE, BY_RULE),
    ("a resume ends a newer owner's attachment (rule 13)", ENGINE, BY_RULE),
    ("a resume needs no epoch (rule 13)", ENGINE, BY_RULE),
    ("a resume needs no owner (rule 13)", FAULTS, BY_RULE),
    ("the number of an attempt to attach is not stored (rule 13)", FAULTS, BY_RULE),
    ("an attempt that comes late attaches (rule 13)", FAULTS, BY_RULE),
    ("a resume goes on in an older copy of the store (rule 13)", FAULTS, BY_RULE),
    ("an operation that failed counts as applied (rule 14)", ENGINE, BY_RULE),
    ("operations may be missing (rule 14)", ENGINE, BY_RULE),
    ("a read comes before what it follows (rule 14)", ENGINE, BY_RULE),
    ("commit before the writes have ended", HISTORY, "HistoryTest.EverySessionShowsItsLastCheckpointAndWhatFollowedIt"),
    ("acknowledge before the commit", POWER_CUTS, "PowerCutTest.AfterEveryWriteAndFlushOfTheExtentFile"),
    ("no write of an index run before the commit", ENGINE, "EngineIndexTest.RowsArePackedAndLeaveMemoryAndMetadata"),
    ("an index run's pages stay free", UTIL, "RepairTest.DropsADamagedIndexRunAndKeepsItsSegment"),
    ("an old index run's pages stay in use", ENGINE, "EngineIndexTest.WhatChangesLittleStaysBesideTheRun"),
    ("rows that a new index run has stay beside it", ENGINE, "EngineIndexTest.RowsArePackedAndLeaveMemoryAndMetadata"),
    ("two segments may have the same page", ENGINE, "EngineStoredAllocation.APageOfTwoSegmentsRefusesToStart"),
    ("a replaced cluster's record stays", ENGINE, "EngineIndexTest.RecordsComeFromTheRunAndFromWhatChanged"),
    ("records of an index run are not checked", FAULTS, "EngineFaultTest.ADamagedIndexRunCostsItsRowsOnly"),
    ("rows of older segments show behind a damaged index run", FAULTS,
     "EngineFaultTest.BehindADamagedIndexRunNoOlderRowShows"),
    ("no position rule at a checkpoint", ENGINE, "EngineTest.CheckpointIsRefusedUnlessEveryPositionIsThereOnce"),
    ("the log is not synced", META, "MetaCrash.ACommittedBatchSurvivesAPowerCut"),
    ("a superblock is not synced", LAYOUT, "ExtentFileSync.ASuperblockIsSyncedBeforeItsUpdateEnds"),
    ("a new extent file is not synced", LAYOUT,
     "ExtentFileSync.ACreationSyncsTheWholeFileBeforeItsNameAndThenTheDirectory"),
    ("the name of a new extent file is not synced", LAYOUT,
     "ExtentFileSync.ACreationSyncsTheWholeFileBeforeItsNameAndThenTheDirectory"),
    ("the name of the metadata's directory is not synced", META,
     "MetaSequence.ANewStoresDirectoryIsSyncedBeforeAnythingIsCommitted"),
    ("a clean close leaves rows in the log", META, "MetaSequence.AClosedStoreNeedsNoLog"),
    ("a clean close leaves its last change in the log", META, "MetaSequence.AClosedStoreNeedsNoLog"),
    ("a clean close tells no last change", META, "MetaSequence.TheSequenceGrowsOverManyOpensAndCloses"),
    ("new extents are not in the allocation record", UTIL, "RepairTest.DropsADamagedIndexRunAndKeepsItsSegment"),
    ("dropped extents stay in the allocation record", UTIL, "StoreTest.WhatClustersLeaveBehindIsInNoRecord"),
    ("masks are not stored", UTIL, "RepairTest.DropsADamagedIndexRunAndKeepsItsSegment"),
    ("carried rows of all segments count", STATE, BY_RULE),
    ("carried rows behind the limit count (rule 1)", STATE, BY_RULE),
    ("a fork has its parent's records (rule 1)", ENGINE, BY_RULE),
    ("a child of a Replace may have a used id (rule 10)", STATE, BY_RULE),
    ("ids that are not to be seen may be used again (rule 10)", ENGINE, BY_RULE),
    ("a cluster id may be used again", STATE, BY_RULE),
    ("positions may be out of order", STATE, BY_RULE),
    ("the checksum has no part id in its seed", ROWS, "PartCrcTest.StorePartAndPageNumberAreSeeds"),
    ("the checksum has no page number in its seed", ROWS, "PartCrcTest.StorePartAndPageNumberAreSeeds"),
    ("the checksum has no store id in its seed", ROWS, "PartCrcTest.StorePartAndPageNumberAreSeeds"),
    ("slots outlive their attachment", ENGINE, BY_RULE),
    ("slots outlive their attachment and what is written there (rule 5)", ENGINE, BY_RULE),
    ("a read of an ended attachment is served (rule 5)", ENGINE, BY_RULE),
    ("a lease holds flash (rule 16)", ENGINE, BY_RULE),
    ("a write lands under a lease", CACHE, BY_RULE),
    ("a write lands under a load", CACHE, "SlotCacheTest.AWriteUnderALoadForgetsTheSlot"),
    ("a written slot keeps its checks", CACHE, "SlotCacheTest.AWriteReachesAnUnleasedSlotAndItsPartsAreCheckedAgain"),
    ("a write keeps the generation", CACHE, "SlotCacheTest.SlotsMayShareAPageAndTheNewerIsFound"),
    ("holes stay in the arena", ENGINE, "EngineCacheTest.CheapHolesAreReadThroughAndNotLeftInTheArena"),
    ("parts are served unchecked", FAULTS, "EngineFaultTest.ADamagedIndexRunCostsItsRowsOnly"),
    ("kept places outlive the cut", ENGINE, "EngineRelatedTest.KeptPlacesAreGivenBack"),
    ("others take a kept end", ENGINE, "EngineRelatedTest.LoggedClustersArePlacedByTheirStoredNeighbours"),
    ("pairs do not lie across a seam", ENGINE, "EngineRelatedTest.ClustersThatAreFetchedTogetherAreReadAtOnce"),
    ("a spill drops carried rows", ENGINE, "EngineSpillTest.CarriedEntriesKeepTheirRecords"),
    ("spilled runs are not bounded", ENGINE, BY_RULE),
    ("spilled runs that nothing names are kept", ENGINE, "EngineEpochTest.ARunIsInUseUntilItsWriteHasEnded"),
    ("a page is spilled for each operation", ENGINE, "EngineSpillTest.WhoHasLittleOfTheTableDoesNotSpill"),
    ("a damaged cluster is placed for room for ever", FAULTS, "EngineFaultTest.ADamagedRecordDoesNotHoldUpAFullTable"),
    ("log runs that hardly anything names stay (rule 19)", ENGINE,
     "EngineGrowthTest.ARunOfWhichLittleIsNamedIsWrittenAgain"),
    ("small children of a split go to pools", ENGINE,
     "EngineManyChildrenTest.FewOfFewEntriesArePendingUntilTheCheckpoint"),
    ("what a seal carries lies among the clusters", ENGINE,
     "EngineDefragmentTest.RecordsOfLogRunsAreJoinedAndCarriedOnesStay"),
    ("neighbours are not stored", ENGINE, "EngineRelatedTest.LoggedClustersArePlacedByTheirStoredNeighbours"),
    ("two writers of a pool's page", ENGINE, BY_RULE),
    ("a page that is being written is written again (rule 6)", ENGINE, BY_RULE),
    ("a page is read for what memory names only (rule 6)", ENGINE, BY_RULE),
    ("a page is written again with what is new only (rule 6)", ENGINE,
     "EnginePoolTest.APageIsWrittenAgainWithAPartThatMemoryHasDropped"),
    ("the growing part of a page is not checked (rule 6)", FAULTS, BY_RULE),
    ("a page that is being written is read from the device (rule 6)", PAGES, BY_RULE),
    ("a write does not hold its pages (rule 15)", ENGINE, BY_RULE),
    ("a part grows over what a commit names (rule 15)", ENGINE, BY_RULE),
    ("the lock is the process's (rule 7)", LAYOUT, BY_RULE),
    ("checkpoints do not bound log runs (rule 19)", ENGINE, BY_RULE),
    ("the other part of a page is not checked", FAULTS, BY_RULE),
    ("a fetch does not hold what it reads", ENGINE, BY_RULE),
    ("an end that a commit still names is free", ENGINE, BY_RULE),
    ("an end that was dropped is never free", ENGINE, "EnginePoolTest.AnEndThatACheckpointFreedIsUsedAgain"),
    ("pools without a checkpoint are never free", ENGINE,
     "PoolTableTest.PagesOfUncommittedPoolsAreFreedOnceNothingIsInFlight"),
    ("a pool forgets that it was committed", ENGINE, "EnginePoolTest.TwoClustersShareAPoolFromItsTwoEnds"),
    ("log runs that no row names are kept", ENGINE, "EngineSpillTest.RunsStayBoundedBetweenCheckpoints"),
    ("verify: checksums are not compared", UTIL, "TwoEndedPool.DamageIsSaidOfThePartThatHasTheByte"),
    ("verify: overlapping parts pass", UTIL, "TwoEndedPool.PartsThatMeetInTheMiddleAreOverlapping"),
    ("verify: kinds of extents pass", UTIL, "TwoEndedPool.APackedRunOfAnOpenSegmentIsNamed"),
    ("verify: leaked pages pass", UTIL, "NamedDamage.IsFound/LeakedPage"),
    ("verify: positions are not counted", UTIL, "RepairTest.SaysWhatIsLost"),
    ("verify: orphans pass", UTIL, "StoreTest.TwoSessionsOnOneSegmentAreNamed"),
    ("repair: half read metadata is repaired", UTIL, "RepairTest.UnreadableMetadataIsNotTakenForMissingRows"),
    ("repair: a dry run commits", UTIL, "RepairedDamage.LeavesWhatIsWholeAndTheEngineGoesOn/SessionRow"),
    ("defragmentation frees pools that others lie in", ENGINE,
     "EngineDefragmentTest.ASealedSegmentIsPackedWhenNobodyReadsIt"),
    ("defragmentation moves what a session reads", ENGINE,
     "EngineDefragmentTest.NothingMovesWhileASessionHasTheSegment"),
    ("defragmentation moves what fails its check", FAULTS,
     "EngineFaultTest.DefragmentationLeavesDamagedClustersWhereTheyAre"),
    ("defragmented pages stay in the allocation record", UTIL, "StoreTest.StoreWithPackedRunsIsWhole"),
    ("packed runs are not flushed before the commit", HISTORY,
     "HistoryTest.EverySessionShowsItsLastCheckpointAndWhatFollowedIt"),
    ("rows of older segments show where a run was lost", UTIL, "RepairTest.DropsADamagedIndexRunAndKeepsItsSegment"),
    ("older records show where a run was lost", UTIL, "RepairTest.DropsADamagedIndexRunAndKeepsItsSegment"),
    ("replaced clusters' rows show in forks", HISTORY,
     "HistoryTest.EverySessionShowsItsLastCheckpointAndWhatFollowedIt"),
    ("older records show behind a damaged index run", FAULTS, "EngineFaultTest.BehindADamagedIndexRunNoOlderRowShows"),
    ("packing forgets that a run was lost", UTIL, "RepairTest.DropsADamagedIndexRunAndKeepsItsSegment"),
    ("unpacked index rows may take any memory", ENGINE, "EngineIndexTest.WhatTakesTooMuchMemoryIsPackedEarlier"),
    ("full log runs of whole clusters are merged", ENGINE, "EngineTest.FullLogRunsOfWholeClustersAreNotWrittenAgain"),
    ("log runs do not follow the links", ENGINE, "EngineRelatedTest.ALogRunFollowsTheLinks"),
    ("a centroid does not follow what joins its cluster", RETRIEVAL,
     "DynaKvPolicyTest.RandomHistoriesKeepEveryEntryInOnePlace"),
    ("a variance does not follow what joins its cluster", RETRIEVAL,
     "DynaKvPolicyTest.RandomHistoriesKeepEveryEntryInOnePlace"),
    ("a wide cluster is not split", RETRIEVAL, "DynaKvPolicyTest.AFarKeyWaitsForASplitAndANearOneJoins"),
    ("a large cluster is not split", RETRIEVAL, "DynaKvPolicyTest.ClustersAdaptAndStaySmall"),
    ("what waits for a split is in no place", RETRIEVAL, "DynaKvPolicyTest.RandomHistoriesKeepEveryEntryInOnePlace"),
    ("a cluster whose row was lost does not split", RETRIEVAL,
     "DynaKvStateTest.ClustersWhoseRowsWereLostGoOnAsWhatTheyWere"),
    ("sinks whose row was lost are a cluster like others", RETRIEVAL,
     "DynaKvStateTest.ClustersWhoseRowsWereLostGoOnAsWhatTheyWere"),
]


def in_sources():
    """-> the names of the fail points that the sources have."""
    names = set()
    for folder in SOURCES:
        for place, _, files in os.walk(os.path.join(ROOT, folder)):
            for file in files:
                if file.endswith((".cc", ".h")):
                    text = re.sub(r'"\n\s*"', "", rules.read(place, file))
                    names.update(re.findall(r'FailPoint\(\s*"([^"]*)"', text))
    return names


def tests_of(name, test):
    return rules.tests_of(name) if test == BY_RULE else [test]


def outcome(build, name, program, test):
    """What comes of the test with that fail point."""
    environment = {**os.environ, **ENVIRONMENT.get(program, {}), "CAIRN_FAIL_POINT": name}
    command = [os.path.join(build, program), "--gtest_filter=" + test, "--gtest_fail_fast"]
    time_max_s = HANG_TIME_MAX_S if name in HANGS else TEST_TIME_MAX_S
    try:
        done = subprocess.run(command, env=environment, timeout=time_max_s, capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        return HUNG if name in HANGS else LATE
    if b"[==========] Running 1 test " not in done.stdout:
        raise LookupError(f"{program} has no test {test}, or more than one")
    if b"[  SKIPPED ]" in done.stdout:
        return SKIPPED
    return FAILED if done.returncode != 0 else PASSED


def tried(build, row):
    """-> a pair of test and outcome for each test that must fail."""
    name, program, test = row
    return [(one, outcome(build, name, program, one)) for one in tests_of(name, test)]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build, names = sys.argv[1], sys.argv[2:]
    rows = [row for row in FAIL_POINTS if not names or row[0] in names]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() + 1) as pool:  # some wait
        found = [(row, test, what) for row, pairs in zip(rows, pool.map(lambda row: tried(build, row), rows))
                 for test, what in pairs]
    counts = dict.fromkeys((FAILED, HUNG, SKIPPED, PASSED, LATE), 0)
    for (name, program, _), test, what in found:
        counts[what] += 1
        if what == PASSED:
            print(f"{program} {test} does not notice: {name}")
        elif what == LATE:
            print(f"{program} {test} does not end within {TEST_TIME_MAX_S} s: {name}")
        elif what == SKIPPED:
            print(f"SKIPPED: {program} {test} cannot run here, so nothing tried: {name}")
    print(f"{len(rows)} fail points; tests: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return 1 if counts[PASSED] or counts[LATE] or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
