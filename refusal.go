package muster

// Refusal is why a node does not take an instance.
type Refusal struct {
	NodeID NodeID `json:"node"`
	Reason string `json:"reason"`
	// Need and Have are how much it would take and how much is free, where that is the
	// reason: MiB of memory or per cent of a core, as the reason says. Nil otherwise.
	Need *int `json:"need,omitempty"`
	Have *int `json:"have,omitempty"`
}
