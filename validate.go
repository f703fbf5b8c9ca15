package muster

import (
	"net/netip"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The limits of what callers send. They hold wherever the input comes from.
const (
	MaxNameBytes      = 63
	MaxRequestIDBytes = 128
	MaxReasonBytes    = 1024
	MaxMapEntries     = 64
	MaxMapKeyBytes    = 128
	MaxMapValueBytes  = 4096
	MaxCommandWords   = 256
	MaxCommandBytes   = 32 << 10
	MaxEnvBytes       = 32 << 10
	MaxImages         = 256
	MaxReported       = 1024
	MaxGeneration     = 1<<53 - 1 // what any JSON reader takes for a whole number
	MaxCPUCount       = 4096
	MaxMemoryMB       = 64 << 20
	MaxOutputBytes    = 4096
)

// CheckText refuses text that is longer than limit bytes, is not UTF-8, or has
// control characters (NUL among them).
func CheckText(field, s string, limit int) error {
	if len(s) > limit {
		return InvalidField(field, "it has %d bytes, at most %d are allowed", len(s), limit)
	}
	if !utf8.ValidString(s) {
		return InvalidField(field, "it is not valid UTF-8")
	}
	if i := strings.IndexFunc(s, unicode.IsControl); i >= 0 {
		c, _ := utf8.DecodeRuneInString(s[i:])
		return InvalidField(field, "it has a control character (%U) at byte %d; remove it", c, i)
	}
	return nil
}

// CheckName refuses what is not 1 to MaxNameBytes letters, digits, dots,
// hyphens and underscores that begin and end with a letter or digit.
func CheckName(field, s string) error {
	if s == "" {
		return InvalidField(field, "it is empty; give 1 to %d letters, digits, dots, hyphens or underscores", MaxNameBytes)
	}
	if err := first(CheckText(field, s, MaxNameBytes), checkNoSecret(field, s)); err != nil {
		return err
	}
	for i, c := range s {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		edge := i == 0 || i == len(s)-1
		if !alnum && (edge || c != '.' && c != '-' && c != '_') {
			return InvalidField(field, "%q has %q where it may not; use letters, digits, dots, hyphens and underscores, with a letter or digit at both ends", s, c)
		}
	}
	return nil
}

// CheckID refuses an id that cannot be one: empty, longer than MaxNameBytes, or with
// control characters.
func CheckID(field, s string) error {
	if s == "" {
		return InvalidField(field, "it is empty; give the id, as the lists show it")
	}
	return first(CheckText(field, s, MaxNameBytes), checkNoSecret(field, s))
}

// CheckMap refuses a map with too many entries, or with keys or values that
// CheckText refuses.
func CheckMap(field string, m Map) error {
	if len(m) > MaxMapEntries {
		return InvalidField(field, "it has %d entries, at most %d are allowed", len(m), MaxMapEntries)
	}
	for k, v := range m {
		if k == "" {
			return InvalidField(field, "it has an empty key")
		}
		if err := CheckText(field, k, MaxMapKeyBytes); err != nil {
			return err
		}
		if err := CheckText(field+"."+k, v, MaxMapValueBytes); err != nil {
			return err
		}
	}
	return nil
}

// variable is what a shell, and systemd-nspawn, take for a variable's name.
var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func checkEnv(env Map) error {
	if len(env) > MaxMapEntries {
		return InvalidField("env", "it has %d entries, at most %d are allowed", len(env), MaxMapEntries)
	}
	size := 0
	for k, v := range env {
		size += len(k) + len(v)
		if !variable.MatchString(k) {
			return InvalidField("env", "%q cannot be the name of a variable; use letters, digits and underscores, with no digit first", k)
		}
		if !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
			return InvalidField("env."+k, "it has a NUL or is not valid UTF-8")
		}
	}
	if size > MaxEnvBytes {
		return InvalidField("env", "it has %d bytes, at most %d are allowed", size, MaxEnvBytes)
	}
	return nil
}

func checkCommand(words []string) error {
	if len(words) > 0 && words[0] == "" {
		return InvalidField("command", "its first word is empty; leave command out for the image's own")
	}
	return checkWords("command", words)
}

// checkWords refuses a command that could not be started for its form.
func checkWords(field string, words []string) error {
	if len(words) > MaxCommandWords {
		return InvalidField(field, "it has %d words, at most %d are allowed", len(words), MaxCommandWords)
	}
	size := 0
	for _, w := range words {
		size += len(w)
		if !utf8.ValidString(w) || strings.ContainsRune(w, 0) {
			return InvalidField(field, "a word has a NUL or is not valid UTF-8")
		}
	}
	if size > MaxCommandBytes {
		return InvalidField(field, "it has %d bytes, at most %d are allowed", size, MaxCommandBytes)
	}
	return nil
}

// first returns the first error of its arguments.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Validate refuses an input that cannot be launched anywhere.
func (in *LaunchInstanceInput) Validate() error {
	if _, ok := in.Type.Info(); !ok {
		return InvalidField("type", "%q is no instance type; use NANO, MICRO, SMALL, MEDIUM or LARGE", in.Type)
	}
	if in.Name != "" {
		if err := CheckName("name", in.Name); err != nil {
			return err
		}
	}
	if in.QueueTimeout != nil && *in.QueueTimeout <= 0 {
		return InvalidField("queueTimeout", "%s is not a span to wait; give one such as 10m", *in.QueueTimeout)
	}
	if in.QueueTimeout != nil && !in.Queue {
		return InvalidField("queueTimeout", "it has no effect without queue: true")
	}
	return first(
		CheckName("image", in.Image),
		checkCommand(in.Command),
		checkEnv(in.Env),
		CheckMap("labels", in.Labels),
		CheckMap("nodeSelector", in.NodeSelector),
		CheckVolumeMounts("volumes", in.Volumes),
		CheckDiskLimit("diskLimitMb", in.DiskLimitMB),
		CheckText("requestId", in.RequestID, MaxRequestIDBytes),
	)
}

// Validate refuses an input that cannot be a node, and writes its address in one spelling.
func (in *RegisterNodeInput) Validate() error {
	addr, err := netip.ParseAddr(in.Addr)
	if err != nil || addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() {
		return InvalidField("addr", "%.80q is not an address to reach a node at; give an IP such as 192.0.2.7", in.Addr)
	}
	in.Addr = addr.Unmap().String()
	if in.UID != nil {
		if err := CheckID("uid", string(*in.UID)); err != nil {
			return err
		}
	}
	switch {
	case in.Port < 1 || in.Port > 65535:
		return InvalidField("port", "%d is not between 1 and 65535", in.Port)
	case in.CPUCount < 1 || in.CPUCount > MaxCPUCount:
		return InvalidField("cpuCount", "%d is not between 1 and %d", in.CPUCount, MaxCPUCount)
	case in.MemoryMB < 1 || in.MemoryMB > MaxMemoryMB:
		return InvalidField("memoryMb", "%d is not between 1 and %d", in.MemoryMB, MaxMemoryMB)
	case in.Incarnation < 1:
		return InvalidField("incarnation", "%d is not a start counter; it is 1 at the first start", in.Incarnation)
	case in.Role != Compute && in.Role != ServiceRole:
		return InvalidField("role", "%q is no role; use COMPUTE or SERVICE", in.Role)
	}
	return first(
		CheckName("id", string(in.ID)),
		CheckText("birthToken", in.BirthToken, MaxNameBytes),
		CheckText("hostname", in.Hostname, 253),
		CheckText("version", in.Version, MaxNameBytes),
		CheckText("bootId", in.BootID, MaxNameBytes),
		CheckMap("labels", in.Labels),
		checkImages(in.Images),
		checkVolumeNames("volumes", in.Volumes),
		checkHostPaths("hostPaths", in.HostPaths),
		checkReports(in.Instances),
	)
}

// Validate refuses a report that no agent of ours sends.
func (in *ReportInstancesInput) Validate() error {
	return first(
		CheckID("uid", string(in.UID)),
		checkImages(in.Images),
		checkVolumeNames("volumes", in.Volumes),
		checkReports(in.Instances),
	)
}

func checkImages(images []string) error {
	if len(images) > MaxImages {
		return InvalidField("images", "there are %d, at most %d are allowed", len(images), MaxImages)
	}
	for _, image := range images {
		if err := checkImageRef("images", image); err != nil {
			return err
		}
	}
	return nil
}

// checkRange refuses a number that is not between 0 and most.
func checkRange(field string, n, most int64) error {
	if n < 0 || n > most {
		return InvalidField(field, "%d is not between 0 and %d", n, most)
	}
	return nil
}

func checkReports(reports []InstanceReportInput) error {
	if len(reports) > MaxReported {
		return InvalidField("instances", "there are %d, at most %d are allowed", len(reports), MaxReported)
	}
	for i := range reports {
		m := &reports[i]
		err := first(
			CheckName("instances.machine", m.Machine),
			CheckID("instances.id", string(m.ID)),
			CheckText("instances.epoch", m.Epoch, MaxNameBytes),
			CheckText("instances.addr", m.Addr, MaxNameBytes),
			CheckText("instances.baseImage", m.BaseImage, MaxNameBytes),
			checkDigestIfAny("instances.imageDigest", m.ImageDigest),
			CheckVolumeMounts("instances.volumes", m.Volumes),
			CheckDiskLimit("instances.diskLimitMb", m.DiskLimitMB),
			checkRange("instances.generation", m.Generation, MaxGeneration),
			checkRange("instances.cpuLimit", int64(m.CPULimit), 100*MaxCPUCount),
			checkRange("instances.memLimitMb", int64(m.MemLimitMB), MaxMemoryMB),
		)
		if err != nil {
			return err
		}
		if err := checkServiceReports(m.Services); err != nil {
			return err
		}
		m.Reason = Printable(m.Reason, MaxReasonBytes)
		m.Output = Storable(m.Output, MaxOutputBytes)
	}
	return nil
}

// Printable makes text of unknown origin fit to be stored and shown on a line:
// valid UTF-8, control characters as spaces, at most limit bytes.
func Printable(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return s
}

// Storable makes output of unknown origin fit to be stored: valid UTF-8 without
// NUL, at most limit bytes of its end. Line breaks stay.
func Storable(s string, limit int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[len(s)-limit:], "")
	}
	return s
}
