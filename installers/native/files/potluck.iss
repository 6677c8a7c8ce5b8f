; The installer for Windows. native/windows.py gives it Version, FileVersion, Tree, Out, Name and RunsOn.

#define Window "{app}\python\pythonw.exe"
#define Words "-P -m potluck_app"

[Setup]
AppId={{7C0F4C5D-6B0B-4A52-9C1E-2B7F3A0D5E11}
AppName=Potluck
AppVersion={#Version}
AppVerName=Potluck {#Version}
VersionInfoVersion={#FileVersion}
DefaultDirName={autopf}\Potluck
DisableDirPage=auto
DisableProgramGroupPage=yes
PrivilegesRequired=lowest
ArchitecturesAllowed={#RunsOn}
ArchitecturesInstallIn64BitMode={#RunsOn}
MinVersion=10.0.17763
OutputDir={#Out}
OutputBaseFilename={#Name}
SetupIconFile={#Tree}\share\icons\potluck.ico
UninstallDisplayIcon={app}\share\icons\potluck.ico
LicenseFile={#Tree}\LICENSE
WizardStyle=modern
Compression=lzma2/max
SolidCompression=yes
ChangesAssociations=yes
ChangesEnvironment=yes
; Whatever runs from the folder is asked to end, so that its files can be replaced.
CloseApplications=yes
RestartApplications=no

[Languages]
Name: en; MessagesFile: compiler:Default.isl
Name: es; MessagesFile: compiler:Languages\Spanish.isl
Name: de; MessagesFile: compiler:Languages\German.isl
Name: fr; MessagesFile: compiler:Languages\French.isl

[CustomMessages]
en.Desktop=An icon on the desktop
es.Desktop=Un icono en el escritorio
de.Desktop=Ein Symbol auf dem Desktop
fr.Desktop=Une icône sur le bureau
en.Gguf=Open models (.gguf) with Potluck
es.Gguf=Abrir modelos (.gguf) con Potluck
de.Gguf=Modelle (.gguf) mit Potluck öffnen
fr.Gguf=Ouvrir les modèles (.gguf) avec Potluck
en.Command=The command “potluck” in terminals
es.Command=El comando «potluck» en los terminales
de.Command=Der Befehl „potluck“ in Terminals
fr.Command=La commande « potluck » dans les terminaux
en.Stay=Shall your models, chats, settings and keys stay? A later installation goes on with them.
es.Stay=¿Desea conservar sus modelos, chats, ajustes y claves? Una instalación posterior los vuelve a usar.
de.Stay=Sollen Ihre Modelle, Chats, Einstellungen und Schlüssel bleiben? Eine spätere Installation macht damit weiter.
fr.Stay=Faut-il garder vos modèles, discussions, paramètres et clés ? Une installation ultérieure les reprendra.
en.Running=Potluck could not be ended. Close its window, quit it in the tray, and try again.
es.Running=No se pudo cerrar Potluck. Cierre su ventana, salga de él en la bandeja del sistema y vuelva a intentarlo.
de.Running=Potluck ließ sich nicht beenden. Schließen Sie sein Fenster, beenden Sie es im Infobereich, und versuchen Sie es noch einmal.
fr.Running=Potluck n’a pas pu être arrêté. Fermez sa fenêtre, quittez-le dans la zone de notification, puis réessayez.

[Tasks]
Name: desktop; Description: {cm:Desktop}; Flags: unchecked
Name: gguf; Description: {cm:Gguf}; Flags: unchecked
Name: command; Description: {cm:Command}; Flags: unchecked

[InstallDelete]
; A module that a new version has no longer must not stay beside it.
Type: filesandordirs; Name: "{app}\python"

[Files]
Source: "{#Tree}\*"; DestDir: "{app}"; Flags: recursesubdirs createallsubdirs ignoreversion

[Icons]
Name: "{autoprograms}\Potluck"; Filename: "{#Window}"; Parameters: "{#Words}"; WorkingDir: "{app}"; IconFilename: "{app}\share\icons\potluck.ico"
Name: "{autodesktop}\Potluck"; Filename: "{#Window}"; Parameters: "{#Words}"; WorkingDir: "{app}"; IconFilename: "{app}\share\icons\potluck.ico"; Tasks: desktop

[Registry]
Root: HKA; Subkey: "Software\Classes\potluck"; ValueType: string; ValueData: "URL:Potluck invitation"; Flags: uninsdeletekey
Root: HKA; Subkey: "Software\Classes\potluck"; ValueName: "URL Protocol"; ValueType: string; ValueData: ""
Root: HKA; Subkey: "Software\Classes\potluck\DefaultIcon"; ValueType: string; ValueData: "{app}\share\icons\potluck.ico"
Root: HKA; Subkey: "Software\Classes\potluck\shell\open\command"; ValueType: string; ValueData: """{#Window}"" {#Words} -- ""%1"""
Root: HKA; Subkey: "Software\Classes\Potluck.gguf"; ValueType: string; ValueData: "Language model (GGUF)"; Flags: uninsdeletekey; Tasks: gguf
Root: HKA; Subkey: "Software\Classes\Potluck.gguf\DefaultIcon"; ValueType: string; ValueData: "{app}\share\icons\potluck.ico"; Tasks: gguf
Root: HKA; Subkey: "Software\Classes\Potluck.gguf\shell\open\command"; ValueType: string; ValueData: """{#Window}"" {#Words} -- ""%1"""; Tasks: gguf
Root: HKA; Subkey: "Software\Classes\.gguf\OpenWithProgids"; ValueName: "Potluck.gguf"; ValueType: string; ValueData: ""; Flags: uninsdeletevalue; Tasks: gguf
Root: HKCU; Subkey: "Environment"; ValueName: "Path"; ValueType: expandsz; ValueData: "{olddata};{app}\bin"; Tasks: command; Check: IsNotInPath

[Run]
Filename: "{#Window}"; Parameters: "{#Words}"; WorkingDir: "{app}"; Description: "{cm:LaunchProgram,Potluck}"; Flags: nowait postinstall skipifsilent

[UninstallDelete]
Type: filesandordirs; Name: "{app}\python"
Type: dirifempty; Name: "{app}"

[Code]
function Path: String;
begin
  if not RegQueryStringValue(HKCU, 'Environment', 'Path', Result) then
    Result := '';
end;

function IsNotInPath: Boolean;
begin
  Result := Pos(';' + Lowercase(ExpandConstant('{app}\bin')) + ';', ';' + Lowercase(Path) + ';') = 0;
end;

procedure LeavePath;
var
  Found: Integer;
  Known, Own: String;
begin
  Known := ';' + Path + ';';
  Own := ';' + ExpandConstant('{app}\bin') + ';';
  Found := Pos(Lowercase(Own), Lowercase(Known));
  if Found = 0 then
    exit;
  Delete(Known, Found, Length(Own) - 1);
  Known := Copy(Known, 2, Length(Known) - 2);
  RegWriteExpandStringValue(HKCU, 'Environment', 'Path', Known);
end;

function InitializeUninstall: Boolean;
var
  Status: Integer;
  Wish: String;
begin
  // Without a person (/SILENT) everything of the person stays.
  Wish := '--keep';
  if not UninstallSilent then
    if MsgBox(CustomMessage('Stay'), mbConfirmation, MB_YESNO or MB_DEFBUTTON1) = IDNO then
      Wish := '--delete';
  // It ends what runs and the start with the computer, and deletes what shall not stay.
  Result := Exec(ExpandConstant('{app}\python\python.exe'), '-P -m potluck uninstall ' + Wish,
    ExpandConstant('{app}'), SW_HIDE, ewWaitUntilTerminated, Status) and (Status < 2);
  if not Result then
    SuppressibleMsgBox(CustomMessage('Running'), mbError, MB_OK, IDOK);
end;

procedure CurUninstallStepChanged(Step: TUninstallStep);
begin
  if Step = usUninstall then
    LeavePath;
end;
