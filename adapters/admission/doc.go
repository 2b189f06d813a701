// Package admission is the source that sees changes in a runtime while they are made: the API server sends each of
// them as an AdmissionReview (admission.k8s.io/v1) before it commits, and [Handler] answers at once.
//
// The handler never denies and never waits: it reads what the decision needs, lets a [core.Filter] decide, hands the event to
// an [Acceptor], which must not block, and answers allowed. [WebhookConfiguration] builds what makes an API server call it.
package admission
