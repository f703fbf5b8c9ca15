package failpoint

// Step names a moment in what an agent does with a machine.
type Step string

// The steps of the agent's reconciliation: what it has decided to do, and has done but not reported.
const (
	LaunchChosen   Step = "launch:chosen"
	LaunchDone     Step = "launch:done"
	RelaunchChosen Step = "relaunch:chosen"
	RelaunchDone   Step = "relaunch:done"
	StopChosen     Step = "stop:chosen"
	StopDone       Step = "stop:done"
	RemoveChosen   Step = "remove:chosen"
	RemoveDone     Step = "remove:done"
)

// The steps of a launch in the agent.
const (
	LaunchDisk       Step = "launch:disk-made"
	LaunchRecord     Step = "launch:record-written"
	LaunchLock       Step = "launch:lock-taken"
	LaunchPutDown    Step = "launch:put-down"
	LaunchBridge     Step = "launch:bridge-made"
	LaunchNamespace  Step = "launch:namespace-made"
	LaunchPair       Step = "launch:pair-made"
	LaunchNetwork    Step = "launch:network-made"
	LaunchGroups     Step = "launch:groups-made"
	LaunchSupervisor Step = "launch:supervisor-started"
	LaunchTold       Step = "launch:told"
	LaunchSucceeded  Step = "launch:predecessor-removed"
	RelaunchRecord   Step = "relaunch:record-written"
	RelaunchRenewed  Step = "relaunch:renewed"
)

// The steps of a launch in the supervisor.
const (
	SuperviseBegun    Step = "supervise:begun"
	SuperviseNoted    Step = "supervise:noted"
	SuperviseMounted  Step = "supervise:mounted"
	SuperviseStarted  Step = "supervise:nspawn-started"
	SuperviseLimited  Step = "supervise:limited"
	SuperviseLeader   Step = "supervise:leader-noted"
	SuperviseRunning  Step = "supervise:running-noted"
	SuperviseTold     Step = "supervise:told"
	SuperviseEnded    Step = "supervise:ended"
	SuperviseFinished Step = "supervise:finished"
)

// The steps of a stop in the agent.
const (
	StopNoted  Step = "stop:noted"
	StopAsked  Step = "stop:asked"
	StopEnded  Step = "stop:ended"
	StopLate   Step = "stop:late"
	StopSeized Step = "stop:seized"
)

// The steps of finishing a machine that has ended, in its supervisor or, when that was killed, in the agent.
const (
	EndKilled  Step = "end:killed"
	EndNoted   Step = "end:noted"
	EndMount   Step = "end:unmounted"
	EndGroup   Step = "end:group-removed"
	EndNetwork Step = "end:network-removed"
)

// The steps of a removal in the agent.
const (
	RemoveSeized    Step = "remove:seized"
	RemoveReleased  Step = "remove:released"
	RemoveShared    Step = "remove:shared-cleared"
	RemoveDisk      Step = "remove:disk-moved"
	RemoveDirectory Step = "remove:directory-moved"
	RemoveDeleted   Step = "remove:files-deleted"
	RemoveUnlocked  Step = "remove:lock-deleted"
)

// Steps returns all steps.
func Steps() []Step {
	return []Step{
		LaunchChosen, LaunchDisk, LaunchRecord, LaunchLock, LaunchPutDown, LaunchBridge, LaunchNamespace, LaunchPair, LaunchNetwork, LaunchGroups, LaunchSupervisor,
		SuperviseBegun, SuperviseNoted, SuperviseMounted, SuperviseStarted, SuperviseLimited, SuperviseLeader, SuperviseRunning, SuperviseTold,
		LaunchTold, LaunchSucceeded, LaunchDone,
		RelaunchChosen, RelaunchRecord, RelaunchRenewed, RelaunchDone,
		StopChosen, StopNoted, StopAsked, StopLate, StopSeized, StopEnded, StopDone,
		SuperviseEnded, EndKilled, EndNoted, EndMount, EndGroup, EndNetwork, SuperviseFinished,
		RemoveChosen, RemoveSeized, RemoveReleased, RemoveShared, RemoveDisk, RemoveDirectory, RemoveDeleted, RemoveUnlocked, RemoveDone,
	}
}
