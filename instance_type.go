package muster

import "slices"

// InstanceType is how large an instance is.
type InstanceType string

// The types, smallest first.
const (
	Nano   InstanceType = "NANO"
	Micro  InstanceType = "MICRO"
	Small  InstanceType = "SMALL"
	Medium InstanceType = "MEDIUM"
	Large  InstanceType = "LARGE"
)

// InstanceTypeInfo is what a type gives.
type InstanceTypeInfo struct {
	Type       InstanceType
	CPULimit   int // per cent of one core
	MemLimitMB int
}

// InstanceTypes lists the types, smallest first.
func InstanceTypes() []*InstanceTypeInfo {
	return []*InstanceTypeInfo{
		{Nano, 25, 128},
		{Micro, 50, 256},
		{Small, 100, 512},
		{Medium, 200, 1024},
		{Large, 400, 2048},
	}
}

// Info returns what t gives, and whether there is such a type.
func (t InstanceType) Info() (InstanceTypeInfo, bool) {
	all := InstanceTypes()
	i := slices.IndexFunc(all, func(info *InstanceTypeInfo) bool { return info.Type == t })
	if i < 0 {
		return InstanceTypeInfo{}, false
	}
	return *all[i], true
}
