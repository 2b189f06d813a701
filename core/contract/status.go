package contract

// The statuses of HTTP that the contracts use (RFC 9110, section 15). Core does not import
// net/http.
const (
	statusOK                    = 200
	statusAccepted              = 202
	statusMultipleChoices       = 300
	statusBadRequest            = 400
	statusUnauthorized          = 401
	statusForbidden             = 403
	statusNotFound              = 404
	statusRequestEntityTooLarge = 413
	statusUnsupportedMediaType  = 415
	statusUnprocessableContent  = 422
	statusTooManyRequests       = 429
	statusInternalServerError   = 500
	statusBadGateway            = 502
	statusServiceUnavailable    = 503
	statusGatewayTimeout        = 504
)
