package v1beta2

// State is the summary of a Watcher in one word. Earlier controllers may have stored Deleting and
// Unmanaged.
type State string

const (
	// StateProcessing means that the controller waits for a step.
	StateProcessing State = "Processing"
	// StateReady means that the route is correct or is not needed.
	StateReady State = "Ready"
	// StateWarning means that the Watcher works only partly.
	StateWarning State = "Warning"
	// StateError means that the Watcher must be changed.
	StateError State = "Error"
)

// The types of the conditions of a Watcher.
const (
	// ConditionRouteReady reports whether the route of the Watcher is correct.
	ConditionRouteReady = "RouteReady"
	// ConditionReady reports whether a Watcher works, for kubectl wait, Flux and Argo CD: the route
	// is ready and, if the runtimes are known, at least one runtime watches. Its message counts
	// these runtimes.
	ConditionReady = "Ready"
)

// The reasons of the conditions of a Watcher.
const (
	// ReasonRouteApplied means that the route leads to the manager.
	ReasonRouteApplied = "RouteApplied"
	// ReasonRouteNotNeeded means that the operator makes no routes.
	ReasonRouteNotNeeded = "RouteNotNeeded"
	// ReasonRoutePending means that no gateway has answered for the route yet.
	ReasonRoutePending = "RoutePending"
	// ReasonRouteRejected means that a gateway rejects the route.
	ReasonRouteRejected = "RouteRejected"
	// ReasonServiceMissing means that the Watcher has no spec.serviceInfo although the operator
	// makes routes.
	ReasonServiceMissing = "ServiceMissing"
	// ReasonGatewayMissing means that the Watcher has no spec.gateway although the operator makes
	// routes.
	ReasonGatewayMissing = "GatewayMissing"
	// ReasonManagerShared means that another Watcher uses the same manager with another route.
	ReasonManagerShared = "ManagerShared"
	// ReasonManagerMissing means that the Watcher names no manager.
	ReasonManagerMissing = "ManagerMissing"
	// ReasonManagerInvalid means that the manager is not a DNS-1123 label.
	ReasonManagerInvalid = "ManagerInvalid"
	// ReasonWatchInvalid means that the Watcher is invalid, because it was stored before its
	// definition contained the current rules.
	ReasonWatchInvalid = "WatchInvalid"
	// ReasonConditionInvalid means that a condition of spec.matchConditions is not used.
	ReasonConditionInvalid = "ConditionInvalid"
	// ReasonInvalidSelector means that the selector of the gateway is invalid.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonGatewayNotFound means that no gateway matches the selector.
	ReasonGatewayNotFound = "GatewayNotFound"
	// ReasonGatewayWithoutHosts means that the gateways have no hosts for the route.
	ReasonGatewayWithoutHosts = "GatewayWithoutHosts"
	// ReasonRouteConflict means that the route belongs to another owner.
	ReasonRouteConflict = "RouteConflict"
	// ReasonRouteRefused means that a request to the API server failed. It is retried.
	ReasonRouteRefused = "RouteRefused"
	// ReasonNotInstalled means that no runtime watches the Watcher yet, for [ConditionReady].
	ReasonNotInstalled = "NotInstalled"
)
