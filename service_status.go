package muster

import "slices"

// ServiceStatus is what was observed of a service.
type ServiceStatus string

// The statuses of a service.
const (
	ServicePending    ServiceStatus = "PENDING"    // its instance does not run yet
	ServiceDeploying  ServiceStatus = "DEPLOYING"  // it is being fetched, unpacked, started
	ServiceRunning    ServiceStatus = "RUNNING"    //
	ServiceRestarting ServiceStatus = "RESTARTING" // it ended and is started again by its policy
	ServiceStopping   ServiceStatus = "STOPPING"   //
	ServiceStopped    ServiceStatus = "STOPPED"    //
	ServiceFailed     ServiceStatus = "FAILED"     //
	ServiceLost       ServiceStatus = "LOST"       // its instance is lost
	ServiceRemoving   ServiceStatus = "REMOVING"   // its node has not confirmed yet that nothing is left
	ServiceRemoved    ServiceStatus = "REMOVED"    //
)

// ServiceHealth is whether a service does what it should.
type ServiceHealth string

// The healths of a service.
const (
	HealthOK      ServiceHealth = "HEALTHY"
	HealthWarning ServiceHealth = "WARNING"
	HealthBad     ServiceHealth = "UNHEALTHY"
	HealthUnknown ServiceHealth = "UNKNOWN"
)

// Valid reports whether it is a health of a service.
func (h ServiceHealth) Valid() bool {
	return h == HealthOK || h == HealthWarning || h == HealthBad || h == HealthUnknown
}

// ServiceStatuses lists every status of a service.
func ServiceStatuses() []ServiceStatus {
	return []ServiceStatus{
		ServicePending, ServiceDeploying, ServiceRunning, ServiceRestarting, ServiceStopping, ServiceStopped, ServiceFailed,
		ServiceLost, ServiceRemoving, ServiceRemoved,
	}
}

func (s ServiceStatus) next() []ServiceStatus {
	active := []ServiceStatus{
		ServicePending, ServiceDeploying, ServiceRunning, ServiceRestarting, ServiceStopping, ServiceStopped, ServiceFailed,
		ServiceLost, ServiceRemoving, ServiceRemoved,
	}
	switch s {
	case "":
		return []ServiceStatus{ServicePending, ServiceDeploying}
	case ServiceRemoving:
		return []ServiceStatus{ServiceRemoved}
	case ServiceRemoved:
		return nil
	}
	return active
}

// MayBecome reports whether a service in status s may go to t; staying is always
// allowed, and "" is a service that does not exist yet.
func (s ServiceStatus) MayBecome(t ServiceStatus) bool {
	return (s == t && s != "") || slices.Contains(s.next(), t)
}
