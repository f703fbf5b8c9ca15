package muster

import "time"

// Usage is what a node or an instance uses. It is volatile: no change tells of it
// and nothing stores it.
type Usage struct {
	CPUPercent   float64   `json:"cpuPercent"`             // of one core, over the last few seconds
	MemoryMB     int       `json:"memoryMb"`               // MiB
	MemoryPeakMB *int      `json:"memoryPeakMb,omitempty"` // MiB; nil: not known
	At           time.Time `json:"at"`                     // when the server was told
	// DiskMB is what an instance's own disk takes, its volumes apart, in MiB; nil: not known yet.
	DiskMB *int `json:"diskMb,omitempty"`
	// DiskAt is when that was measured, for it takes its time.
	DiskAt *time.Time `json:"diskAt,omitempty"`
}

// MaxMachineUsages is how many machines' usage a beat tells at most.
const MaxMachineUsages = 300

// UsageInput is what a node uses, and each machine on it.
type UsageInput struct {
	CPUPercent float64             `json:"cpuPercent"`
	MemoryMB   int                 `json:"memoryMb"`
	Machines   []MachineUsageInput `json:"machines"`
}

// MachineUsageInput is what a machine uses.
type MachineUsageInput struct {
	Machine      string  `json:"machine"`
	CPUPercent   float64 `json:"cpuPercent"`
	MemoryMB     int     `json:"memoryMb"`
	MemoryPeakMB *int    `json:"memoryPeakMb,omitempty"`
	DiskMB       *int    `json:"diskMb,omitempty"`
	// DiskAt is when that was measured, by the node's clock.
	DiskAt *time.Time `json:"diskAt,omitempty"`
}
