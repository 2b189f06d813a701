package v1beta2

// State is the summary of a Watcher in one word. Other controllers may have stored Deleting and
// Unmanaged.
type State string

const (
	// StateProcessing means that a step is awaited.
	StateProcessing State = "Processing"
	// StateReady means that the route is as it should be, or is not needed.
	StateReady State = "Ready"
	// StateWarning means that the Watcher works in part.
	StateWarning State = "Warning"
	// StateError means that the Watcher needs a change.
	StateError State = "Error"
)

// The types of the conditions of a Watcher.
const (
	// ConditionRouteReady reports whether the route of the Watcher is as it should be.
	ConditionRouteReady = "RouteReady"
	// ConditionReady reports whether a Watcher works, for kubectl wait, Flux and Argo CD: the route
	// is ready, and a runtime watches, as far as the runtimes are known. Its message counts them.
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
	// ReasonServiceMissing means that the Watcher has no spec.serviceInfo, and the operator makes
	// routes.
	ReasonServiceMissing = "ServiceMissing"
	// ReasonGatewayMissing means that the Watcher has no spec.gateway, and the operator makes
	// routes.
	ReasonGatewayMissing = "GatewayMissing"
	// ReasonManagerShared means that another Watcher has the manager with another route.
	ReasonManagerShared = "ManagerShared"
	// ReasonManagerMissing means that the Watcher names no manager.
	ReasonManagerMissing = "ManagerMissing"
	// ReasonManagerInvalid means that the manager is not a DNS-1123 label.
	ReasonManagerInvalid = "ManagerInvalid"
	// ReasonWatchInvalid means that the Watcher was stored before its definition had its rules.
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
