#!/usr/bin/env python3
"""What shows each rule of the store (docs/kv-node.md, "The rules of the store"): the fail points of
fail_points.py that switch it off, and the test of its own that then fails.

usage: rules.py            prints the table
       rules.py --check    fails where it is out of date: a rule, fail point or test that does not exist, a rule
                           without a row, a fail point that is in the sources or in fail_points.py only. With
                           CAIRN_SHARED set, also a break of the model, $CAIRN_SHARED/tools/cairn_model.py, without a
                           row.
"""
import ast
import os
import re
import sys

# rule, the --break of the model that switches it off ("": none does), (fail point, test) or a reason why there is none
ROWS = [
    (1, "carry-all", [
        ("carried rows of all segments count",
         "SessionStateTest.CarriedRowsCountInTheLastSegmentWithACheckpointOnly")]),
    (1, "", [
        ("carried rows behind the limit count (rule 1)",
         "SessionStateTest.CarriedRowsCountInTheLastSegmentWithACheckpointOnly"),
        ("a fork has its parent's records (rule 1)", "EngineTest.ForkSeesItsParentBelowTheForkPointOnly")]),
    (2, "seal-at-commit", [
        ("a seal goes over to the next segment at its commit (rule 2)",
         "EngineEpochTest.WhatComesBehindASealingCutGoesToTheNextSegment")]),
    (2, "seal-live", [
        ("the node seals what is attached (rule 2)", "EngineEpochTest.TheNodeDoesNotSealWhatSomebodyIsAttachedTo")]),
    (2, "seal-same-epoch", [
        ("a seal by the node keeps the epoch (rule 2)", "EngineEpochTest.ASealByTheNodeEndsTheEpoch")]),
    (2, "", [
        ("a seal without new positions seals (rule 2)", "EngineEpochTest.ASealWithoutNewPositionsIsAPlainCheckpoint")]),
    (3, "log-per-session", [
        ("a sealed segment's log runs stay the session's (rule 3)", "EngineEpochTest.ALogRunStaysWithItsSealedSegment"),
        ("a sealed segment goes while others stand on it (rule 3)", "EngineTest.DeletedSessionsGiveTheirFlashBack")]),
    (4, "no-rollback", [
        ("an open goes on with the attachment that is there (rule 4)",
         "EngineTest.AnotherOpenEndsTheOlderAttachmentAndItsResume")]),
    (4, "", [
        ("the epoch of an attachment is not stored (rule 4)",
         "EngineTest.AnotherOpenEndsTheOlderAttachmentAndItsResume"),
        "a checkpoint in progress is given up because nothing pumps a session that ends; rows are read when its I/O "
        "and its commits have ended, so one that was being committed counts"]),
    (5, "keep-slots", [
        ("slots outlive their attachment", "EngineCacheTest.TheEndOfAnAttachmentForgetsItsSlotsOnly"),
        ("slots outlive their attachment and what is written there (rule 5)",
         "EngineCacheTest.BehindARollbackNothingIsServedFromOldSlots"),
        "one of the two is enough: other bytes come with a write, which reaches or ends each slot of its pages"]),
    (5, "old-read", [
        ("a read of an ended attachment is served (rule 5)", "EngineEpochTest.AReadOfAnEndedAttachmentIsDropped")]),
    (6, "two-writes", [
        ("a page that is being written is written again (rule 6)",
         "EnginePoolTest.APageThatIsBeingWrittenMakesTheOtherPartWait")]),
    (6, "gap", [
        ("two writers of a pool's page", "PoolTableTest.PagesThatAreWrittenOrHeldMustWait")]),
    (6, "drop-other", [
        ("a page is read for what memory names only (rule 6)", "PoolTableTest.PagesWithDroppedBytesAreReadToo"),
        ("a page is written again with what is new only (rule 6)",
         "EnginePoolTest.APageIsWrittenAgainWithAPartThatMemoryHasDropped")]),
    (6, "unchecked", [
        ("the other part of a page is not checked", "EngineFaultTest.APageWhereTheOtherPartIsDamagedIsLeftAlone"),
        ("the growing part of a page is not checked (rule 6)",
         "EngineFaultTest.APageWhereTheGrowingPartIsDamagedIsLeftAlone")]),
    (6, "", [
        ("a page that is being written is read from the device (rule 6)",
         "PageIoTest.APageThatIsBeingWrittenComesFromMemoryAndIsNotReadOver")]),
    (7, "old-io", [
        ("the lock is the process's (rule 7)", "ExtentFileTest.TheLockOutlivesOtherDescriptorsOfTheFile"),
        "that a write in flight keeps the open file description, and so the lock, is the kernel's doing"]),
    (8, "late-pair", [
        ("rows that change behind the cut are committed (rule 8)",
         "EngineEpochTest.WhatIsPlacedBehindTheCutIsNotInTheCheckpoint")]),
    (8, "", [
        ("a checkpoint does not wait for the one before (rule 8)",
         "EngineEpochTest.ASecondCheckpointWaitsForTheFirst")]),
    (9, "unsorted", [
        ("positions may be out of order", "SessionStateTest.AppendMustGoAboveTheClustersLastPosition"),
        "Replace has nothing to sort: Positions cannot be out of order, and a child's parts are slices of one"]),
    (10, "visible-max", [
        ("ids that are not to be seen may be used again (rule 10)", "EngineRulesTest.NextClusterIdsNeverGoBack")]),
    (10, "", [
        ("a cluster id may be used again", "SessionStateTest.ANewClusterIdIsAboveEveryIdThatWasUsed"),
        ("a child of a Replace may have a used id (rule 10)", "SessionStateTest.ReplaceMustAccountForEveryPosition")]),
    (11, "no-stale-bit", [
        ("the bit of a stale index row is not stored (rule 11)",
         "EngineTest.StaleBitOfAnIndexRowSurvivesThoughItsCountFits")]),
    (12, "fence-at-post", [
        ("operations of older epochs are applied (rule 12)",
         "EngineEpochTest.AnOperationOfAnOlderEpochIsNotAppliedToTheNewerOne")]),
    (13, "resume-any", [
        ("a resume needs no epoch (rule 13)", "EngineEpochTest.ResumeNeedsTheStoredEpoch"),
        ("a resume ends a newer owner's attachment (rule 13)",
         "EngineTest.AnotherOpenEndsTheOlderAttachmentAndItsResume"),
        ("a resume needs no owner (rule 13)", "EngineAttachTest.AnOwnerInBetweenEndsTheOlderOnesResumes")]),
    (13, "", [
        ("the number of an attempt to attach is not stored (rule 13)",
         "EngineAttachTest.AnAttemptThatComesLateEndsNothing"),
        ("an attempt that comes late attaches (rule 13)", "EngineAttachTest.AnAttemptThatComesLateEndsNothing"),
        ("a resume goes on in an older copy of the store (rule 13)",
         "EngineAttachTest.AnOlderCopyOfTheStoreIsNotGoneOnWith")]),
    (14, "run-on", [
        ("an operation that failed counts as applied (rule 14)",
         "EngineTest.OperationsBehindAFailedOneAreRefusedUntilItComesAgain"),
        ("operations may be missing (rule 14)", "EngineTest.NumbersHaveNoGapsAndAReadNamesWhatItFollows"),
        ("a read comes before what it follows (rule 14)", "EngineTest.NumbersHaveNoGapsAndAReadNamesWhatItFollows")]),
    (15, "free-at-split", [
        ("an end that a commit still names is free", "EnginePoolTest.AnEndThatACommittedRowNamesIsNotGivenAway"),
        ("an end that a commit still names is free",
         "EnginePoolTest.AnEndThatACheckpointReleasesIsNotGivenAwayBeforeItsCommit")]),
    (15, "free-no-read", [
        ("a fetch does not hold what it reads", "EnginePoolTest.AnEndThatAReadInFlightNamesIsNotGivenAway")]),
    (15, "free-no-write", [
        ("a write does not hold its pages (rule 15)", "EngineEpochTest.ARunIsInUseUntilItsWriteHasEnded")]),
    (15, "room-now", [
        ("a part grows over what a commit names (rule 15)", "EnginePoolTest.GrowthStopsAtWhatACommittedRowNames")]),
    (15, "room-no-read", [
        ("a fetch does not hold what it reads", "EnginePoolTest.GrowthStopsAtWhatAReadInFlightNames")]),
    (16, "", [("a lease holds flash (rule 16)", "EngineEpochTest.ALeaseHoldsNoFlash")]),
    (17, "log-now", [
        ("log runs are free at the cut (rule 17)",
         "EngineEpochTest.ALogRunIsFreeWhenTheCheckpointThatDropsItIsCommitted"),
        ("log runs are free at the cut (rule 17)", "EngineEpochTest.ACheckpointThatIsGivenUpLeavesTheLastOnesLogRun")]),
    (18, "land-on-lease", [
        ("a write lands under a lease", "SlotCacheTest.AWriteDoesNotLandUnderALease")]),
    (19, "stragglers", [
        ("checkpoints do not bound log runs (rule 19)", "EngineTest.LogRunsOfASegmentStayBounded"),
        ("spilled runs are not bounded", "EngineSpillTest.RunsStayBoundedBetweenCheckpoints")]),
]


def tests_of(fail_point):
    """The tests that must fail with it; none if no rule names it."""
    return [shown[1] for _, _, shows in ROWS for shown in shows if shown[0] == fail_point]


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def test_names(folder):
    """Names of the tests in the sources of a folder, as a gtest filter has them."""
    names = set()
    for source in os.listdir(folder):
        if source.endswith(".cc"):
            found = re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", read(folder, source), re.MULTILINE)
            names.update(".".join(name) for name in found)
    return names


def check_test(program, test, root):
    """`test` as a filter has it: those of a table have its name in front and the row behind."""
    name = re.sub(r"^\w+/|/\w+$", "", test)
    if name not in test_names(os.path.join(root, os.path.dirname(program))):
        yield "%s has no test %s" % (program, test)


def check_shown(shows, programs, root):
    for shown in shows:
        if isinstance(shown, str):
            continue
        fail_point, test = shown
        if fail_point not in programs:
            yield "there is no fail point %r" % fail_point
        else:
            yield from check_test(programs[fail_point], test, root)


def check_breaks(model):
    """The model's own table has each break with its rule."""
    table = re.search(r"^BREAKS = (\{.*?\})$", model, re.MULTILINE | re.DOTALL).group(1)
    theirs = {(int(rule[1:]), name) for name, rule in ast.literal_eval(table).items()}
    for rule, name in theirs ^ {(rule, name) for rule, name, _ in ROWS if name}:
        yield "break %s of rule %d is in one of the two tables only" % (name, rule)


def check(fail_points):
    programs = {name: program for name, program, _ in fail_points.FAIL_POINTS}
    if len(programs) != len(fail_points.FAIL_POINTS):
        yield "two fail points have one name"
    for name in fail_points.in_sources() ^ set(programs):
        yield "fail point %r is in the sources or in fail_points.py, not in both" % name
    for name, program, test in fail_points.FAIL_POINTS:
        if test != fail_points.BY_RULE:
            yield from check_test(program, test, fail_points.ROOT)
        elif not tests_of(name):
            yield "fail point %r has no test" % name
    for rule, name, shows in ROWS:
        for said in check_shown(shows, programs, fail_points.ROOT):
            yield "rule %d %s: %s" % (rule, name, said)
    page = read(fail_points.ROOT, "docs/kv-node.md").partition("## The rules of the store")[2]
    for rule in {int(number) for number in re.findall(r"^\| (\d+)\. ", page, re.MULTILINE)} ^ {row[0] for row in ROWS}:
        yield "rule %d is here or in docs/kv-node.md, not in both" % rule
    shared = os.environ.get("CAIRN_SHARED")
    if shared:
        yield from check_breaks(read(shared, "tools/cairn_model.py"))


def main():
    import fail_points  # here, because it imports this module
    if sys.argv[1:2] == ["--check"]:
        found = list(check(fail_points))
        print("\n".join(found + ["rules: %d breaches" % len(found)]))
        return 1 if found else 0
    print("| rule | break of the model | fail point | test |\n| --- | --- | --- | --- |")
    for rule, name, shows in ROWS:
        for shown in shows:
            fail_point, test = ("", shown) if isinstance(shown, str) else shown
            print("| %d | %s | %s | %s |" % (rule, name, fail_point, test))
    return 0


if __name__ == "__main__":
    sys.exit(main())
