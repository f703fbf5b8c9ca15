package server_test

import (
	"fmt"
	"strings"
)

// plain is a field whose arguments are the same each time.
func plain(field string) func(*town) string { return func(*town) string { return field } }

// about is a field with the id of an object of the town.
func about(format, object string) func(*town) string {
	return func(w *town) string { return fmt.Sprintf(format, w.ids[object]) }
}

// reading is the rule of what VIEWER, OPERATOR and ADMIN read, each within its scope.
func reading(own, outside func(*town) string, says string) rule {
	return rule{open: admin + operator + scopedOperator + viewer + scopedViewer, own: own, outside: outside, hidden: scopedOperator + scopedViewer, says: says}
}

// operating is the rule of what OPERATOR and ADMIN change, each within its scope.
func operating(own, outside func(*town) string) rule {
	return rule{open: admin + operator + scopedOperator, own: own, outside: outside, hidden: scopedOperator, says: "NOT_FOUND"}
}

// ofAgents is the rule of what a NODE key does for its own node alone.
func ofAgents(format string) rule {
	return rule{open: admin + node, own: about(format, "own uid"), outside: about(format, "foreign uid"), hidden: node, says: "FORBIDDEN"}
}

func only(who string, field func(*town) string) rule { return rule{open: who, own: field} }

// none is only about something that there is not.
func none(who string, field func(*town) string) rule {
	return rule{open: who, own: field, absent: true}
}

// lookers are those who look up what is registered.
const lookers = admin + operator + scopedOperator + viewer + scopedViewer + registrar

// registering is the rule of what is registered by hand: it is the whole cluster's, and a
// REGISTRAR's within its scope.
func registering(format string, before func(w *town, entry string)) rule {
	about := func(service string) func(*town) string {
		return func(w *town) string {
			entry := fmt.Sprintf(`{cluster: "c", protocol: "http", service: %q, address: "192.0.2.1", port: %d}`, service, w.next())
			before(w, entry)
			return fmt.Sprintf(format, entry)
		}
	}
	return rule{open: admin + operator + registrar, own: about("inside"), outside: about("outside"), hidden: registrar, says: "FORBIDDEN"}
}

func queries() map[string]rule {
	list := func(field string) rule { // what is outside is in the same list, or is not
		name, _, _ := strings.Cut(field, " {")
		return reading(plain(name+" { pageInfo { hasNextPage } }"), plain(field), unseen)
	}
	return map[string]rule{
		"node":                   reading(plain(`node(id: "a1") { id }`), plain(`node(id: "b1") { id }`), null),
		"nodes":                  list(`nodes(first: 100) { edges { node { uid instances { edges { node { id } } } } } }`),
		"instance":               reading(about(`instance(id: %q) { id }`, "own instance"), about(`instance(id: %q) { id }`, "foreign instance"), null),
		"instances":              list(`instances(first: 100) { edges { node { id node { uid } } } }`),
		"instanceTypes":          reading(plain(`instanceTypes { type }`), nil, ""),
		"clusterHealth":          reading(plain(`clusterHealth { status }`), nil, ""),
		"image":                  none(admin+operator+scopedOperator+viewer+scopedViewer, plain(`image(name: "none") { name }`)),
		"images":                 reading(plain(`images { totalCount }`), nil, ""),
		"service":                reading(about(`service(id: %q) { id }`, "own service"), about(`service(id: %q) { id }`, "foreign service"), null),
		"services":               list(`services(first: 100) { edges { node { id } } }`),
		"registrations":          only(lookers, plain(`registrations { revision }`)),
		"volumes":                list(`volumes(first: 100) { edges { node { node { uid } } } }`),
		"changes":                list(`changes(first: 100) { edges { node { objectId } } }`),
		"serverInfo":             reading(plain(`serverInfo { version }`), nil, ""),
		"whoami":                 only(strings.Replace(everybody, joining, "", 1), plain(`whoami { id }`)),
		"accessKeys":             only(admin, plain(`accessKeys { totalCount }`)),
		"joinTokens":             only(admin, plain(`joinTokens { id }`)),
		"certificateAuthorities": reading(plain(`certificateAuthorities { pin }`), nil, ""),
		"auditLog":               only(admin, plain(`auditLog { pageInfo { hasNextPage } }`)),
		"assignments":            ofAgents(`assignments(uid: %q, incarnation: 1) { epoch }`),
		"peers":                  ofAgents(`peers(uid: %q, incarnation: 1) { tag }`),
	}
}

// node makes a node for a field that changes it.
func (w *town) node(prefix string) string {
	id := fmt.Sprintf("%s-%d", prefix, w.next())
	w.join(id)
	return id
}

func (w *town) removed(prefix string) string {
	id := w.node(prefix)
	w.must(admin, fmt.Sprintf(`mutation { removeNode(input: {id: %q}) { revision } }`, id))
	return id
}

// each makes a field about a new object each time.
func each(format string, made func(w *town) string) func(*town) string {
	return func(w *town) string { return fmt.Sprintf(format, made(w)) }
}

func nodes(format string) rule {
	return operating(
		each(format, func(w *town) string { return w.node("a") }),
		each(format, func(w *town) string { return w.node("b") }),
	)
}

func instances(format string) rule {
	return operating(
		each(format, func(w *town) string { return w.launch("a1") }),
		each(format, func(w *town) string { return w.launch("b1") }),
	)
}

func services(format string) rule {
	return operating(
		each(format, func(w *town) string { return w.service(w.launch("a1"), "inside") }),
		each(format, func(w *town) string { return w.service(w.launch("b1"), "outside") }),
	)
}

func mutations() map[string]rule {
	newKey := func(w *town) string { return idOf(w.key("VIEWER", "")) }
	newName := func(w *town) string { return fmt.Sprintf("name-%d", w.next()) }
	within := func(format string) rule { // a new service in an instance
		return operating(
			each(strings.Replace(format, "NAME", "%s", 1), func(w *town) string { return newName(w) + `", instanceId: "` + w.ids["own instance"] }),
			each(strings.Replace(format, "NAME", "%s", 1), func(w *town) string { return newName(w) + `", instanceId: "` + w.ids["foreign instance"] }),
		)
	}
	return map[string]rule{
		"registerNode": {
			open: admin + node, own: func(w *town) string { return registerField("a1", w.ids["own uid"]) },
			outside: func(w *town) string { return registerField("b1", w.ids["foreign uid"]) }, hidden: node, says: "FORBIDDEN",
		},
		"heartbeat":          ofAgents(`heartbeat(input: {uid: %q, incarnation: 1}) { epoch }`),
		"reportInstances":    ofAgents(`reportInstances(input: {uid: %q, incarnation: 1, sequence: 1, epoch: "", appliedRevision: 0, instances: []}) { revision }`),
		"answerAgentRequest": ofAgents(`answerAgentRequest(input: {uid: %q, incarnation: 1, id: 1}) { wanted }`),
		"renewCertificate":   only(node, func(w *town) string { return fmt.Sprintf(`renewCertificate(input: {csr: %q}) { ca }`, w.csr()) }),
		"joinNode": only(joining, func(w *town) string {
			return fmt.Sprintf(`joinNode(input: {nodeId: "a-%d", csr: %q}) { nodeUid }`, w.next(), w.csr())
		}),
		"cordonNode":        nodes(`cordonNode(input: {id: %q}) { revision }`),
		"uncordonNode":      nodes(`uncordonNode(input: {id: %q}) { revision }`),
		"drainNode":         nodes(`drainNode(input: {id: %q}) { revision }`),
		"labelNode":         nodes(`labelNode(input: {id: %q, set: {a: "b"}}) { revision }`),
		"removeNode":        nodes(`removeNode(input: {id: %q}) { revision }`),
		"forgetNode":        operating(each(`forgetNode(input: {id: %q}) { revision }`, func(w *town) string { return w.removed("a") }), each(`forgetNode(input: {id: %q}) { revision }`, func(w *town) string { return w.removed("b") })),
		"releaseBrake":      only(admin+operator, plain(`releaseBrake(input: {}) { revision }`)),
		"launchInstance":    operating(plain(`launchInstance(input: {type: NANO, nodeId: "a1"}) { revision }`), plain(`launchInstance(input: {type: NANO, nodeId: "b1"}) { revision }`)),
		"startInstance":     instances(`startInstance(input: {id: %q}) { revision }`),
		"stopInstance":      instances(`stopInstance(input: {id: %q}) { revision }`),
		"restartInstance":   instances(`restartInstance(input: {id: %q}) { revision }`),
		"labelInstance":     instances(`labelInstance(input: {id: %q, set: {a: "b"}}) { revision }`),
		"adoptInstance":     instances(`adoptInstance(input: {id: %q}) { revision }`),
		"terminateInstance": instances(`terminateInstance(input: {id: %q}) { revision }`),
		"removeImage":       none(admin+operator, plain(`removeImage(input: {name: "none"}) { revision }`)),
		"removeVolume":      operating(plain(`removeVolume(input: {name: "on-a1"}) { revision }`), plain(`removeVolume(input: {name: "on-b1"}) { revision }`)),
		"deployService":     within(`deployService(input: {command: ["x"], name: "NAME"}) { revision }`),
		"registerService":   within(`registerService(input: {name: "NAME"}) { revision }`),
		"startService":      services(`startService(input: {id: %q}) { revision }`),
		"stopService":       services(`stopService(input: {id: %q}) { revision }`),
		"restartService":    services(`restartService(input: {id: %q}) { revision }`),
		"removeService":     services(`removeService(input: {id: %q}) { revision }`),
		"reportCheck": {
			open:    admin + operator + scopedOperator + registrar,
			own:     about(`reportCheck(input: {serviceId: %q, check: "own", status: OK}) { service { id } }`, "own service"),
			outside: about(`reportCheck(input: {serviceId: %q, check: "own", status: OK}) { service { id } }`, "foreign service"),
			hidden:  scopedOperator + registrar, says: "NOT_FOUND",
		},
		"register": registering(`register(input: %s) { revision }`, func(*town, string) {}),
		"deregister": registering(`deregister(input: %s) { revision }`, func(w *town, entry string) {
			w.must(admin, fmt.Sprintf(`mutation { register(input: %s) { revision } }`, entry))
		}),
		"createAccessKey":            only(admin, each(`createAccessKey(input: {name: %q, role: VIEWER}) { revision }`, newName)),
		"revokeAccessKey":            only(admin, each(`revokeAccessKey(input: {id: %q}) { revision }`, newKey)),
		"rotateAccessKey":            only(admin, each(`rotateAccessKey(input: {id: %q}) { revision }`, newKey)),
		"verifyFeed":                 only(admin, plain(`verifyFeed(input: {}) { findings { subject } }`)),
		"rotateCertificateAuthority": only(admin, plain(`rotateCertificateAuthority(input: {}) { revision }`)),
		"createJoinToken":            only(admin, plain(`createJoinToken(input: {}) { revision }`)),
		"revokeJoinToken": only(admin, each(`revokeJoinToken(input: {id: %q}) { revision }`, func(w *town) string {
			return idOf(w.must(admin, `mutation { createJoinToken(input: {}) { text } }`, "createJoinToken", "text"))
		})),
		"createSignIn": reading(plain(`createSignIn(input: {}) { path }`), nil, ""),
	}
}

// registerField is the field of registration.
func registerField(id, uid string) string {
	text := registration(id, uid)
	return strings.TrimSuffix(strings.TrimPrefix(text, "mutation {"), "}")
}

func subscriptions() map[string]rule {
	return map[string]rule{
		"healthChanges":       reading(plain(`healthChanges(filter: {nodeId: "a1"}) { type }`), plain(`healthChanges(filter: {nodeId: "b1"}) { type }`), "NOT_FOUND"),
		"nodeChanges":         reading(plain(`nodeChanges { type }`), nil, ""),
		"instanceChanges":     reading(plain(`instanceChanges(filter: {nodeId: "a1"}) { type }`), plain(`instanceChanges(filter: {nodeId: "b1"}) { type }`), "NOT_FOUND"),
		"serviceChanges":      reading(plain(`serviceChanges(filter: {nodeId: "a1"}) { type }`), plain(`serviceChanges(filter: {nodeId: "b1"}) { type }`), "NOT_FOUND"),
		"registrationChanges": only(lookers, plain(`registrationChanges { type }`)),
		"instanceLogs":        reading(about(`instanceLogs(id: %q) { text }`, "own instance"), about(`instanceLogs(id: %q) { text }`, "foreign instance"), "NOT_FOUND"),
		"serviceLogs":         reading(about(`serviceLogs(id: %q) { text }`, "own service"), about(`serviceLogs(id: %q) { text }`, "foreign service"), "NOT_FOUND"),
		"agentRequests":       ofAgents(`agentRequests(uid: %q, incarnation: 1) { id }`),
	}
}
